// SPDX-License-Identifier: GPL-2.0 OR MIT
/* The ioctls: structures from and to user space. */
#include <linux/err.h>
#include <linux/moduleparam.h>
#include <linux/uaccess.h>

#include "gdrdrv.h"

bool gdrdrv_use_persistent_mapping = true;
module_param_named(use_persistent_mapping, gdrdrv_use_persistent_mapping, bool, 0444);
MODULE_PARM_DESC(use_persistent_mapping,
		 "Pins outlive the freeing of the GPU memory unless asked otherwise (default Y)");

/* Publishes the pin only after its handle has reached user space. */
static int gdrdrv_pin_for_user(struct gdrdrv_file *gfile, const struct gdrdrv_pin_request *request,
			       u64 __user *handle)
{
	struct gdrdrv_pin *pin = gdrdrv_pin_create(gfile, request);
	int ret = -EFAULT;

	if (IS_ERR(pin))
		return PTR_ERR(pin);
	if (put_user((u64)pin->handle, handle))
		goto abandon;
	ret = gdrdrv_pin_publish(gfile, pin);
	if (ret)
		goto abandon;
	return 0;

abandon:
	gdrdrv_pin_abandon(gfile, pin);
	return ret;
}

static int gdrdrv_ioctl_pin(struct gdrdrv_file *gfile, struct gdrdrv_pin_buffer __user *arg)
{
	struct gdrdrv_pin_buffer args;
	struct gdrdrv_pin_request request;

	if (copy_from_user(&args, arg, sizeof(args)))
		return -EFAULT;
	/* With a token, nvidia.ko would free a table again after the free callback. */
	if (args.p2p_token || args.va_space)
		return -EINVAL;

	request = (struct gdrdrv_pin_request){
		.addr = args.addr,
		.size = args.size,
		.persistent = gdrdrv_use_persistent_mapping,
	};
	return gdrdrv_pin_for_user(gfile, &request, &arg->handle);
}

static int gdrdrv_ioctl_pin_v2(struct gdrdrv_file *gfile, struct gdrdrv_pin_buffer_v2 __user *arg)
{
	struct gdrdrv_pin_buffer_v2 args;
	struct gdrdrv_pin_request request;

	if (copy_from_user(&args, arg, sizeof(args)))
		return -EFAULT;
	if (args.flags & ~GDRDRV_PIN_FLAG_FORCE_PCIE)
		return -EINVAL;

	request = (struct gdrdrv_pin_request){
		.addr = args.addr,
		.size = args.size,
		.persistent = gdrdrv_use_persistent_mapping,
		.force_pcie = args.flags & GDRDRV_PIN_FLAG_FORCE_PCIE,
	};
	return gdrdrv_pin_for_user(gfile, &request, &arg->handle);
}

static int gdrdrv_ioctl_pin_v3(struct gdrdrv_file *gfile, struct gdrdrv_pin_v3 __user *arg)
{
	const u32 lifetimes = GDRDRV_PIN_V3_PERSISTENT | GDRDRV_PIN_V3_REVOCABLE;
	const u32 known = lifetimes | GDRDRV_PIN_V3_ZERO_AFTER | GDRDRV_PIN_V3_FORCE_PCIE;
	struct gdrdrv_pin_v3 args;
	struct gdrdrv_pin_request request;

	if (copy_from_user(&args, arg, sizeof(args)))
		return -EFAULT;
	if (args.size != sizeof(args) || args.flags & ~known ||
	    (args.flags & lifetimes) == lifetimes)
		return -EINVAL;

	request = (struct gdrdrv_pin_request){
		.addr = args.addr,
		.size = args.length,
		.persistent = args.flags & lifetimes ? args.flags & GDRDRV_PIN_V3_PERSISTENT
						     : gdrdrv_use_persistent_mapping,
		.force_pcie = args.flags & GDRDRV_PIN_V3_FORCE_PCIE,
		.zero_after = args.flags & GDRDRV_PIN_V3_ZERO_AFTER,
	};
	return gdrdrv_pin_for_user(gfile, &request, &arg->handle);
}

static int gdrdrv_ioctl_unpin(struct gdrdrv_file *gfile, struct gdrdrv_unpin_buffer __user *arg)
{
	struct gdrdrv_unpin_buffer args;

	if (copy_from_user(&args, arg, sizeof(args)))
		return -EFAULT;
	return gdrdrv_unpin(gfile, args.handle);
}

static int gdrdrv_ioctl_cb_flag(struct gdrdrv_file *gfile, struct gdrdrv_get_cb_flag __user *arg)
{
	struct gdrdrv_get_cb_flag args;
	struct gdrdrv_pin *pin;

	if (copy_from_user(&args, arg, sizeof(args)))
		return -EFAULT;

	pin = gdrdrv_pin_get(gfile, args.handle);
	if (!pin)
		return -EINVAL;
	args.flag = gdrdrv_pin_was_revoked(pin);
	args.pad = 0;
	gdrdrv_pin_put(pin);

	return copy_to_user(arg, &args, sizeof(args)) ? -EFAULT : 0;
}

static int gdrdrv_read_info(struct gdrdrv_file *gfile, u64 handle, struct gdrdrv_get_info_v2 *info)
{
	struct gdrdrv_pin *pin;

	pin = gdrdrv_pin_get(gfile, handle);
	if (!pin)
		return -EINVAL;

	mutex_lock(&pin->lock);
	*info = (struct gdrdrv_get_info_v2){
		.handle = handle,
		.va = pin->pages.va,
		.mapped_size = pin->pages.length,
		.page_size = GDRDRV_GPU_PAGE_SIZE,
		.tsc_khz = gdrdrv_cycles_khz(),
		.tm_cycles = pin->cycles,
		.mapping_type = pin->mappings ? pin->type : GDRDRV_MAPPING_NONE,
	};
	mutex_unlock(&pin->lock);
	gdrdrv_pin_put(pin);
	return 0;
}

static int gdrdrv_ioctl_info(struct gdrdrv_file *gfile, struct gdrdrv_get_info __user *arg)
{
	struct gdrdrv_get_info args;
	struct gdrdrv_get_info_v2 info;
	int ret;

	if (copy_from_user(&args, arg, sizeof(args)))
		return -EFAULT;
	ret = gdrdrv_read_info(gfile, args.handle, &info);
	if (ret)
		return ret;

	args = (struct gdrdrv_get_info){
		.handle = info.handle,
		.va = info.va,
		.mapped_size = info.mapped_size,
		.page_size = info.page_size,
		.tsc_khz = info.tsc_khz,
		.tm_cycles = info.tm_cycles,
		.mapped = info.mapping_type != GDRDRV_MAPPING_NONE,
		.wc_mapping = info.mapping_type == GDRDRV_MAPPING_WC,
	};
	return copy_to_user(arg, &args, sizeof(args)) ? -EFAULT : 0;
}

static int gdrdrv_ioctl_info_v2(struct gdrdrv_file *gfile, struct gdrdrv_get_info_v2 __user *arg)
{
	struct gdrdrv_get_info_v2 args, info;
	int ret;

	if (copy_from_user(&args, arg, sizeof(args)))
		return -EFAULT;
	ret = gdrdrv_read_info(gfile, args.handle, &info);
	if (ret)
		return ret;
	return copy_to_user(arg, &info, sizeof(info)) ? -EFAULT : 0;
}

static int gdrdrv_ioctl_attr(struct gdrdrv_get_attr __user *arg)
{
	struct gdrdrv_get_attr args;

	if (copy_from_user(&args, arg, sizeof(args)))
		return -EFAULT;

	switch (args.attr) {
	case GDRDRV_ATTR_USE_PERSISTENT_MAPPING:
		args.val = gdrdrv_use_persistent_mapping;
		break;
	case GDRDRV_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE:
		args.val = gdrdrv_force_pcie_supported();
		break;
	default:
		return -EINVAL;
	}
	return copy_to_user(arg, &args, sizeof(args)) ? -EFAULT : 0;
}

static int gdrdrv_ioctl_type(struct gdrdrv_file *gfile, struct gdrdrv_req_mapping_type __user *arg)
{
	struct gdrdrv_req_mapping_type args;
	struct gdrdrv_pin *pin;
	int ret;

	if (copy_from_user(&args, arg, sizeof(args)))
		return -EFAULT;

	pin = gdrdrv_pin_get(gfile, args.handle);
	if (!pin)
		return -EINVAL;
	ret = gdrdrv_pin_set_type(pin, args.mapping_type);
	gdrdrv_pin_put(pin);
	return ret;
}

static int gdrdrv_ioctl_version(struct gdrdrv_get_version __user *arg)
{
	struct gdrdrv_get_version args = {
		.gdrdrv_version = GDRDRV_ABI_VERSION,
		.minimum_gdr_api_version = GDRDRV_MINIMUM_API_VERSION,
	};

	return copy_to_user(arg, &args, sizeof(args)) ? -EFAULT : 0;
}

static int gdrdrv_ioctl_features(struct gdrdrv_features __user *arg)
{
	struct gdrdrv_features args;

	if (copy_from_user(&args, arg, sizeof(args)))
		return -EFAULT;
	if (args.size != sizeof(args) || args.flags)
		return -EINVAL;

	args.features = GDRDRV_FEATURE_PIN_V3 | GDRDRV_FEATURE_SHARE | GDRDRV_FEATURE_EVENTS;
	if (gdrdrv_force_pcie_supported())
		args.features |= GDRDRV_FEATURE_FORCE_PCIE;
	if (GDRDRV_HAS_DEVICE_TYPE)
		args.features |= GDRDRV_FEATURE_DEVICE_TYPE;
	return copy_to_user(arg, &args, sizeof(args)) ? -EFAULT : 0;
}

/* Installs the descriptor only after its number has reached user space. */
static int gdrdrv_ioctl_share(struct file *filp, struct gdrdrv_share __user *arg)
{
	struct gdrdrv_share args;
	struct gdrdrv_pin *pin;
	struct file *share;
	int fd, ret;

	if (copy_from_user(&args, arg, sizeof(args)))
		return -EFAULT;
	if (args.size != sizeof(args) || args.flags & ~GDRDRV_SHARE_RDONLY || args.pad)
		return -EINVAL;

	pin = gdrdrv_pin_get(filp->private_data, args.handle);
	if (!pin)
		return -EINVAL;

	ret = gdrdrv_share_open(filp, pin, args.flags & GDRDRV_SHARE_RDONLY, &share);
	if (ret)
		goto put_pin;

	fd = get_unused_fd_flags(O_CLOEXEC);
	if (fd < 0) {
		ret = fd;
		goto put_share;
	}

	ret = -EFAULT;
	if (put_user(fd, &arg->fd))
		goto put_fd;

	fd_install(fd, share);
	gdrdrv_count(GDRDRV_COUNT_SHARES);
	gdrdrv_pin_put(pin);
	return 0;

put_fd:
	put_unused_fd(fd);
put_share:
	fput(share);
put_pin:
	gdrdrv_pin_put(pin);
	return ret;
}

long gdrdrv_ioctl(struct file *filp, unsigned int cmd, unsigned long arg)
{
	struct gdrdrv_file *gfile = filp->private_data;
	void __user *user = (void __user *)arg;

	if (_IOC_TYPE(cmd) != GDRDRV_IOCTL_TYPE)
		return -EINVAL;
	if (!gdrdrv_is_current(&gfile->owner))
		return -EACCES;

	switch (cmd) {
	case GDRDRV_IOC_PIN_BUFFER:
		return gdrdrv_ioctl_pin(gfile, user);
	case GDRDRV_IOC_PIN_BUFFER_V2:
		return gdrdrv_ioctl_pin_v2(gfile, user);
	case GDRDRV_IOC_PIN_V3:
		return gdrdrv_ioctl_pin_v3(gfile, user);
	case GDRDRV_IOC_UNPIN_BUFFER:
		return gdrdrv_ioctl_unpin(gfile, user);
	case GDRDRV_IOC_GET_CB_FLAG:
		return gdrdrv_ioctl_cb_flag(gfile, user);
	case GDRDRV_IOC_GET_INFO:
		return gdrdrv_ioctl_info(gfile, user);
	case GDRDRV_IOC_GET_INFO_V2:
		return gdrdrv_ioctl_info_v2(gfile, user);
	case GDRDRV_IOC_GET_ATTR:
		return gdrdrv_ioctl_attr(user);
	case GDRDRV_IOC_REQ_MAPPING_TYPE:
		return gdrdrv_ioctl_type(gfile, user);
	case GDRDRV_IOC_GET_VERSION:
		return gdrdrv_ioctl_version(user);
	case GDRDRV_IOC_FEATURES:
		return gdrdrv_ioctl_features(user);
	case GDRDRV_IOC_SHARE:
		return gdrdrv_ioctl_share(filp, user);
	default:
		return -ENOTTY;
	}
}

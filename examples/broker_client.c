/* SPDX-License-Identifier: MIT */
/*
 * A client of the broker in C: it asks for a region by name, and writes a line into it.
 *
 * The broker sends the memory as a file descriptor. That of host memory and of the simulated GPU is
 * a memory file, which mmap maps. That of a real GPU is CUDA's, which mmap refuses: CUDA imports
 * it, and copies, or gives it to kernels. Stores by the CPU take gdrpy in Python there, or
 * libgdrapi with the kernel module: without one it maps memory in the process that made it
 * (libgdrapi.c).
 *
 * First start a broker, in another terminal, and make a region for the program to write into:
 *
 *	export GDRPY_SOCKET=/tmp/broker.sock
 *	gdrpy serve --socket $GDRPY_SOCKET
 *
 * Then, in this terminal:
 *
 *	export GDRPY_SOCKET=/tmp/broker.sock
 *	gdrpy alloc greeting 4096
 *	gcc -o client broker_client.c -ldl
 *	./client "$GDRPY_SOCKET" greeting "written in C"
 *	gdrpy get greeting --nbytes 12
 *
 * A further word, "cuda", has CUDA import a simulated GPU's memory as well; its driver is in the
 * folder of `python -m gdrpy.sim`, which LD_LIBRARY_PATH must name.
 *
 * docs/broker-protocol.md has the protocol. Its messages are msgpack: this program writes the two
 * that it needs byte by byte, and of the answers reads what it needs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define PACKET_LIMIT 65536

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Writing msgpack: texts of up to 255 bytes, small numbers, true and false, maps of up to 15. */

struct message {
	unsigned char bytes[1024];
	size_t length;
};

static void put(struct message *message, unsigned char byte)
{
	message->bytes[message->length++] = byte;
}

static void put_text(struct message *message, const char *text)
{
	size_t length = strlen(text);

	put(message, 0xd9);
	put(message, length);
	memcpy(message->bytes + message->length, text, length);
	message->length += length;
}

static void put_field(struct message *message, const char *name, unsigned char value)
{
	put_text(message, name);
	put(message, value);
}

/* Reading msgpack: a reply is a map from texts to numbers, texts, bytes, true, false and nil. */

struct reader {
	const unsigned char *next, *end;
};

static uint64_t take(struct reader *reader, size_t nbytes)
{
	uint64_t value = 0;

	if ((size_t)(reader->end - reader->next) < nbytes) {
		fprintf(stderr, "the broker's message ends too early\n");
		exit(1);
	}
	while (nbytes--)
		value = value << 8 | *reader->next++;
	return value;
}

struct value {
	uint64_t number;  /* of a number, true or false */
	const char *text; /* of a text or bytes, which do not end in 0: */
	size_t length;
};

static struct value take_value(struct reader *reader)
{
	unsigned char kind = take(reader, 1);
	struct value value = {0};

	if (kind <= 0x7f || kind >= 0xe0) { /* a small number */
		value.number = (int8_t)kind;
		return value;
	}
	if (kind >= 0xcc && kind <= 0xd3) { /* a number of 1, 2, 4 or 8 bytes */
		value.number = take(reader, 1 << (kind & 3));
		return value;
	}
	if (kind == 0xc0 || kind == 0xc2 || kind == 0xc3) { /* nil, false, true */
		value.number = kind == 0xc3;
		return value;
	}
	if (kind >= 0xa0 && kind <= 0xbf) { /* a short text */
		value.length = kind & 0x1f;
	} else if (kind >= 0xd9 && kind <= 0xdb) { /* a text, its length in 1, 2 or 4 bytes */
		value.length = take(reader, 1 << (kind - 0xd9));
	} else if (kind >= 0xc4 && kind <= 0xc6) { /* bytes */
		value.length = take(reader, 1 << (kind - 0xc4));
	} else {
		fprintf(stderr, "the broker's message has a value of kind %#x\n", kind);
		exit(1);
	}
	value.text = (const char *)reader->next;
	if ((size_t)(reader->end - reader->next) < value.length)
		take(reader, value.length); /* which fails */
	reader->next += value.length;
	return value;
}

/* What a reply has under a name; ends the program with the broker's words if it refuses. */
static struct value field(const unsigned char *packet, size_t nbytes, const char *wanted)
{
	struct reader reader = {packet, packet + nbytes};
	struct value found = {0};
	unsigned char kind = take(&reader, 1);
	size_t fields = kind == 0xde ? take(&reader, 2) : kind & 0x0f;

	while (fields--) {
		struct value name = take_value(&reader);
		struct value value = take_value(&reader);

		if (name.length == 7 && !memcmp(name.text, "message", 7)) {
			fprintf(stderr, "the broker says: %.*s\n", (int)value.length, value.text);
			exit(1);
		}
		if (name.length == strlen(wanted) && !memcmp(name.text, wanted, name.length))
			found = value;
	}
	return found;
}

/* One request and its reply: a field of it, and the descriptor that came along, or -1. */
static struct value ask(int broker, const struct message *request, const char *wanted, int *fd)
{
	static unsigned char packet[PACKET_LIMIT];
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec data = {packet, sizeof(packet)};
	struct msghdr reply = {
		.msg_iov = &data,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct cmsghdr *beside;
	ssize_t nbytes;

	if (send(broker, request->bytes, request->length, MSG_NOSIGNAL) < 0)
		fail("send");
	nbytes = recvmsg(broker, &reply, MSG_CMSG_CLOEXEC);
	if (nbytes <= 0)
		fail("recvmsg");
	*fd = -1;
	beside = CMSG_FIRSTHDR(&reply);
	if (beside && beside->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(beside), sizeof(*fd));
	return field(packet, nbytes, wanted);
}

static int connect_to(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct message hello = {.length = 0};
	int broker = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	int none;

	if (broker < 0)
		fail("socket");
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (connect(broker, (struct sockaddr *)&address, sizeof(address)))
		fail(path);

	put(&hello, 0x84); /* a map of 4 */
	put_text(&hello, "op");
	put_text(&hello, "hello");
	put_field(&hello, "id", 1);
	put_field(&hello, "version", 1);
	put_text(&hello, "client");
	put_text(&hello, "an example in C");
	ask(broker, &hello, "version", &none);
	return broker;
}

/* The descriptor of a region, and in *size the bytes that its memory has. */
static int get(int broker, const char *name, size_t *size)
{
	struct message request = {.length = 0};
	int fd;

	put(&request, 0x85);
	put_text(&request, "op");
	put_text(&request, "get");
	put_field(&request, "id", 2);
	put_text(&request, "name");
	put_text(&request, name);
	put_field(&request, "readonly", 0xc2); /* false */
	put_field(&request, "gpu", 0xc3);      /* true: else an unwritable one may come */
	*size = ask(broker, &request, "size", &fd).number;
	if (fd < 0) {
		fprintf(stderr, "the region came without its descriptor\n");
		exit(1);
	}
	return fd;
}

/* By the CPU, where the memory is a file. */
static void write_by_mmap(int fd, size_t size, const char *text)
{
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (memory == MAP_FAILED)
		fail("mmap");
	memcpy(memory, text, strlen(text));
	munmap(memory, size);
	puts("written by mmap");
}

/* What it needs of the driver: with NVIDIA's toolkit, include <cuda.h> in place of these. */
#define POSIX_DESCRIPTOR 1
#define ON_A_DEVICE 1
#define READ_AND_WRITE 3

struct access {
	int location_type, device, flags;
};

int cuInit(unsigned int flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(void *context);
int cuCtxSynchronize(void);
int cuMemImportFromShareableHandle(unsigned long long *memory, void *handle, int type);
int cuMemRelease(unsigned long long memory);
int cuMemAddressReserve(unsigned long long *address, size_t size, size_t alignment,
			unsigned long long wanted, unsigned long long flags);
int cuMemAddressFree(unsigned long long address, size_t size);
int cuMemMap(unsigned long long address, size_t size, size_t offset, unsigned long long memory,
	     unsigned long long flags);
int cuMemUnmap(unsigned long long address, size_t size);
int cuMemSetAccess(unsigned long long address, size_t size, const struct access *access,
		   size_t count);
int cuMemcpyHtoD_v2(unsigned long long address, const void *host, size_t size);

#define CALL(name, ...)                                                                            \
	do {                                                                                       \
		__typeof__(&(name)) call = (__typeof__(&(name)))dlsym(driver, #name);              \
		int error = call ? call(__VA_ARGS__) : -1;                                         \
		if (error) {                                                                       \
			fprintf(stderr, "%s: error %d\n", #name, error);                           \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* By CUDA, which is looked for only now: the program runs where there is none. */
static void write_by_cuda(int fd, size_t size, const char *text)
{
	struct access access = {ON_A_DEVICE, 0, READ_AND_WRITE};
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	unsigned long long memory, address;
	void *context;

	if (!driver) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	CALL(cuInit, 0);
	CALL(cuDevicePrimaryCtxRetain, &context, 0);
	CALL(cuCtxSetCurrent, context);
	CALL(cuMemImportFromShareableHandle, &memory, (void *)(intptr_t)fd, POSIX_DESCRIPTOR);
	CALL(cuMemAddressReserve, &address, size, 0, 0, 0);
	CALL(cuMemMap, address, size, 0, memory, 0);
	CALL(cuMemSetAccess, address, size, &access, 1);
	CALL(cuMemcpyHtoD_v2, address, text, strlen(text));
	CALL(cuCtxSynchronize);
	CALL(cuMemUnmap, address, size);
	CALL(cuMemRelease, memory);
	CALL(cuMemAddressFree, address, size);
	CALL(cuDevicePrimaryCtxRelease_v2, 0);
	puts("written by CUDA");
}

int main(int count, char **words)
{
	struct stat status;
	int broker, fd;
	size_t size;

	if (count < 4 || strlen(words[2]) > 255) {
		fprintf(stderr, "usage: %s SOCKET REGION TEXT [cuda]\n", words[0]);
		return 2;
	}
	broker = connect_to(words[1]);
	fd = get(broker, words[2], &size);
	if (fstat(fd, &status))
		fail("fstat");
	if (strlen(words[3]) > size) {
		fprintf(stderr, "the region has no more than %zu bytes\n", size);
		return 1;
	}
	if (S_ISREG(status.st_mode) && count == 4)
		write_by_mmap(fd, size, words[3]);
	else
		write_by_cuda(fd, size, words[3]);
	close(fd);
	close(broker); /* which gives the region back */
	return 0;
}

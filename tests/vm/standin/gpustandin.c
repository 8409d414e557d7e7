#include <linux/module.h>
static int __init i(void){return 0;}
static void __exit e(void){}
module_init(i); module_exit(e);
MODULE_LICENSE("Dual MIT/GPL");

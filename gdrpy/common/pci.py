"""How PCI devices are called."""


def pci_name(domain: int, bus: int, slot: int) -> str:
    """A PCI address as the kernel writes it."""
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"

"""Finds code that makes the host wait for a device, on a machine without one."""

from torch.utils._python_dispatch import TorchDispatchMode

READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::item")


class NoReading(TorchDispatchMode):
    """Raises for whatever would make the host wait for a device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket._qualified_op_name
        if name in READS:
            raise AssertionError(f"{name} reads from the device")
        return func(*args, **(kwargs or {}))

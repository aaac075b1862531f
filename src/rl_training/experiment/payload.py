"""Tensors and plain values as bytes.

Values that could not be read again are refused before they are written. Reading runs no code, and a manipulated file
cannot make it use more memory than a genuine file of that size.
"""

import errno
import io
import pickle
import pickletools
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import psutil
import torch

from rl_training.errors import CheckpointError
from rl_training.experiment.files import read_bytes

# Exactly these types: a subclass, such as NumPy's float64 of float, is pickled by name and refused when it is read.
_PLAIN = {bool, int, float, str, bytes, type(None), torch.Tensor, torch.nn.Parameter}
_DICTS = {dict, OrderedDict}
_LISTS = {list, tuple}
_MAX_ENTRIES = 100_000  # per archive; each tensor is one entry
_TEXT_UNIT = 64  # characters of a string that count as one value; a pickle stores a repeated string only once
# The names that `pack` writes. `torch.load` allows more, such as `bytearray`, which allocates gigabytes for a number.
_CALLABLES = {"torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3", "torch._utils _rebuild_parameter"}
_GLOBALS = {*_CALLABLES, "collections OrderedDict", "_codecs encode", "torch.storage UntypedStorage"}


def find_unsupported(values: Any, name: str = "") -> str | None:
    """Describe the first thing inside `values` that is neither a tensor nor a plain value; None if there is none."""
    kind = type(values)
    if kind in _PLAIN:
        return None
    if kind in _DICTS:
        for key, value in values.items():
            inner = f"{name}.{key}".lstrip(".") if isinstance(key, str) else f"{name}[{key!r}]"
            found = find_unsupported(key, f"{name}: key {key!r}") or find_unsupported(value, inner)
            if found:
                return found
        return None
    if kind in _LISTS:
        return next(
            filter(None, (find_unsupported(value, f"{name}[{index}]") for index, value in enumerate(values))), None
        )
    return f"{name} is a {kind.__name__}"


def pack(values: Any) -> bytes:
    """Return the values as the content of a file."""
    memory = io.BytesIO()
    torch.save(values, memory)
    return memory.getvalue()


def unpack(content: bytes, file: str) -> Any:
    """Return the values in a file's content. Refuse a file that is damaged, contains code or expands in memory.

    `file` names the file in errors.
    """
    try:
        _check_archive(content)
        values = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        _check_size(values, len(content))
        return values
    except pickle.UnpicklingError as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{file} is refused: it is damaged or contains code ({reason})") from None
    except Exception as error:  # in a damaged file, the unpickler may raise almost any error
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{file} is damaged: {reason}") from None


def read_payload(path: Path) -> bytes:
    """Read a file for `unpack`; a file larger than the free memory raises an `OSError`."""
    size, free = path.stat().st_size, psutil.virtual_memory().available
    if size > free:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, but only {free:,} bytes of memory are free", str(path))
    return read_bytes(path, free)


def _check_archive(content: bytes) -> None:
    """Refuse an archive that `torch.save` would not write: compressed, with overlapping entries or other names."""
    if not content.startswith(b"PK\x03\x04"):
        raise ValueError("it is not an archive of torch.save")
    if content.count(b"PK\x01\x02") > _MAX_ENTRIES:
        raise ValueError(f"the archive has more than {_MAX_ENTRIES:,} entries")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if any(
            entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size for entry in entries
        ):
            raise ValueError("the archive is compressed")
        if sum(entry.file_size for entry in entries) > len(content):
            raise ValueError("the entries of the archive are larger than the file")
        for entry in entries:
            if entry.filename.endswith(".pkl"):
                _check_names(archive.read(entry))


def _check_names(pickled: bytes) -> None:
    for opcode, name, _ in pickletools.genops(pickled):
        if opcode.name == "GLOBAL" and name not in _GLOBALS and not _is_torch_constant(str(name)):
            raise pickle.UnpicklingError(f"it refers to {name}")


def _is_torch_constant(name: str) -> bool:
    """Return whether a name such as `torch FloatStorage` or `torch uint16` is a storage class or a dtype."""
    module, _, attribute = name.partition(" ")
    return module == "torch" and (
        attribute.endswith("Storage") or isinstance(getattr(torch, attribute, None), torch.dtype)
    )


def _check_size(values: Any, size: int) -> None:
    """Refuse values that take more memory than their file of `size` bytes, such as lists that are shared many times."""
    # By the id of a list or dict: how many values it contains, shared ones counted each time.
    counts: dict[int, int] = {}
    storages: dict[int, int] = {}  # by the address of a tensor's storage: its bytes
    if _count_values(values, counts, storages) > size or sum(storages.values()) > size:
        raise ValueError("its values take more memory than the file is large")


def _count_values(values: Any, counts: dict[int, int], storages: dict[int, int]) -> int:
    kind = type(values)
    if kind in _DICTS or kind in _LISTS:
        if id(values) not in counts:
            counts[id(values)] = 2**63  # while it is being counted, so that a list that contains itself is refused
            parts = [part for pair in values.items() for part in pair] if kind in _DICTS else values
            counts[id(values)] = 1 + sum(_count_values(part, counts, storages) for part in parts)
        return counts[id(values)]
    if isinstance(values, torch.Tensor):
        return _count_tensor(values, storages)
    return 1 + len(values) // _TEXT_UNIT if isinstance(values, (str, bytes)) else 1


def _count_tensor(tensor: torch.Tensor, storages: dict[int, int]) -> int:
    storage = tensor.untyped_storage()
    storages[storage.data_ptr()] = storage.nbytes()
    if tensor.numel() * tensor.element_size() > storage.nbytes():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has only {storage.nbytes():,} bytes")
    return 1

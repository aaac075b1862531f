"""Tensors and plain values as bytes: what could not be read again is refused at writing.

Reading runs no code, and takes no more memory than a file that `pack` wrote would take.
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

# Exactly these: a subclass, such as NumPy's float64 of float, is stored by its name and refused when it is read.
_PLAIN = {bool, int, float, str, bytes, type(None), torch.Tensor, torch.nn.Parameter}
_MAPS = {dict, OrderedDict}
_LISTS = {list, tuple}
_MOST_ENTRIES = 100_000  # of an archive; a tensor takes one
_TEXT_UNIT = 64  # characters of a text that count as one value: names are stored once and used often
# The names that `pack` writes. `torch.load` allows more, such as `bytearray`, which allocates gigabytes for a number.
_CALLED = {"torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor_v3", "torch._utils _rebuild_parameter"}
_GLOBALS = {*_CALLED, "collections OrderedDict", "_codecs encode", "torch.storage UntypedStorage"}


def find_foreign(values: Any, name: str = "") -> str | None:
    """Where inside `values` something is neither a tensor nor a plain value, and what; none if nothing is."""
    kind = type(values)
    if kind in _PLAIN:
        return None
    if kind in _MAPS:
        for key, value in values.items():
            inner = f"{name}.{key}".lstrip(".") if isinstance(key, str) else f"{name}[{key!r}]"
            found = find_foreign(key, f"{name}: key {key!r}") or find_foreign(value, inner)
            if found:
                return found
        return None
    if kind in _LISTS:
        return next(filter(None, (find_foreign(value, f"{name}[{index}]") for index, value in enumerate(values))), None)
    return f"{name} is a {kind.__name__}"


def pack(values: Any) -> bytes:
    """The values as the content of a file."""
    memory = io.BytesIO()
    torch.save(values, memory)
    return memory.getvalue()


def unpack(content: bytes, file: str) -> Any:
    """The values in a file's content; `file` names it if it is damaged, holds code, or would unpack to more."""
    try:
        _check_archive(content)
        values = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        _check_size(values, len(content))
        return values
    except pickle.UnpicklingError as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{file} is refused: it is damaged or holds code ({reason})") from None
    except Exception as error:  # what the unpickler meets in a damaged file shows as almost any error
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{file} is damaged: {reason}") from None


def read_payload(path: Path) -> bytes:
    """Read a file for `unpack`; one that does not fit into the memory that is free is an `OSError`."""
    size, free = path.stat().st_size, psutil.virtual_memory().available
    if size > free:
        raise OSError(errno.EFBIG, f"it has {size:,} bytes, and {free:,} bytes of memory are free", str(path))
    return read_bytes(path, free)


def _check_archive(content: bytes) -> None:
    """Refuse an archive that `torch.save` would not write: compressed, overlapping, with other names."""
    if not content.startswith(b"PK\x03\x04"):
        raise ValueError("it is no archive of torch.save")
    if content.count(b"PK\x01\x02") > _MOST_ENTRIES:
        raise ValueError(f"the archive has more than {_MOST_ENTRIES:,} entries")
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        entries = archive.infolist()
        if any(
            entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size for entry in entries
        ):
            raise ValueError("the archive is compressed")
        if sum(entry.file_size for entry in entries) > len(content):
            raise ValueError("the archive unpacks to more than the file holds")
        for entry in entries:
            if entry.filename.endswith(".pkl"):
                _check_names(archive.read(entry))


def _check_names(pickled: bytes) -> None:
    for opcode, name, _ in pickletools.genops(pickled):
        if opcode.name == "GLOBAL" and name not in _GLOBALS and not _is_torch_constant(str(name)):
            raise pickle.UnpicklingError(f"it names {name}")


def _is_torch_constant(name: str) -> bool:
    """Whether a name such as `torch FloatStorage` or `torch uint16` stands for a kind of storage or of number."""
    module, _, attribute = name.partition(" ")
    return module == "torch" and (
        attribute.endswith("Storage") or isinstance(getattr(torch, attribute, None), torch.dtype)
    )


def _check_size(values: Any, size: int) -> None:
    """Refuse values that take more memory than `size`, the bytes of their file: shared lists, expanded tensors."""
    weights: dict[int, int] = {}  # by id: how many values a list or map holds, those that it shares counted each time
    storages: dict[int, int] = {}
    if _weight(values, weights, storages) > size or sum(storages.values()) > size:
        raise ValueError("it unpacks to more than the file holds")


def _weight(values: Any, weights: dict[int, int], storages: dict[int, int]) -> int:
    kind = type(values)
    if kind in _MAPS or kind in _LISTS:
        if id(values) not in weights:
            weights[id(values)] = 2**63  # while it is being counted, for values that hold themselves
            parts = [part for pair in values.items() for part in pair] if kind in _MAPS else values
            weights[id(values)] = 1 + sum(_weight(part, weights, storages) for part in parts)
        return weights[id(values)]
    if isinstance(values, torch.Tensor):
        return _tensor_weight(values, storages)
    return 1 + len(values) // _TEXT_UNIT if isinstance(values, (str, bytes)) else 1


def _tensor_weight(tensor: torch.Tensor, storages: dict[int, int]) -> int:
    storage = tensor.untyped_storage()
    storages[storage.data_ptr()] = storage.nbytes()
    if tensor.numel() * tensor.element_size() > storage.nbytes():
        raise ValueError(f"a tensor of shape {tuple(tensor.shape)} has {storage.nbytes():,} bytes")
    return 1

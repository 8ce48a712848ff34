#!/usr/bin/env python3
"""Prints checksums of every tensor of the checkpoints in tests/data/hf-*, for tests/data/checkpoint_checksums.json.

    tests/reference/checkpoint_checksums.py tests/data > tests/data/checkpoint_checksums.json

Independent of Koine's readers: Python's own zipfile, pickle and struct; nothing else is needed. The pickles are ours
(tests/data/README.md says where they come from), and the unpickler makes tensors of nothing but the names it knows.
"""
import collections
import io
import json
import math
import pathlib
import pickle
import struct
import sys
import zipfile
import zlib

FORMATS = {"F32": ("f", 4), "F16": ("e", 2), "I64": ("q", 8), "I32": ("i", 4), "BF16": (None, 2)}
STORAGES = {"FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "LongStorage": "I64"}


class Tensor:
    def __init__(self, dtype, data, offset, shape, stride):
        self.dtype, self.shape = dtype, list(shape)
        size = FORMATS[dtype][1]
        indices = [offset]
        for dimension, step in zip(shape, stride):
            indices = [i + k * step for i in indices for k in range(dimension)]
        self.bytes = b"".join(data[i * size:(i + 1) * size] for i in indices)


class Unpickler(pickle.Unpickler):
    def __init__(self, archive, prefix):
        super().__init__(io.BytesIO(archive.read(prefix + "data.pkl")))
        self.archive, self.prefix = archive, prefix

    def find_class(self, module, name):
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return lambda storage, offset, shape, stride, *rest: Tensor(*storage, offset, shape, stride)
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise ValueError(f"{module}.{name}")

    def persistent_load(self, pid):
        word, dtype, key, _, elements = pid
        assert word == "storage"
        data = self.archive.read(self.prefix + "data/" + key)
        assert len(data) == elements * FORMATS[dtype][1]
        return dtype, data


def read_torch(path):
    with zipfile.ZipFile(path) as archive:
        prefix = next(n for n in archive.namelist() if n.endswith("data.pkl"))[:-len("data.pkl")]
        return Unpickler(archive, prefix).load()


def read_safetensors(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    result = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        stride, step = [], 1
        for dimension in reversed(entry["shape"]):
            stride.insert(0, step)
            step *= dimension
        result[name] = Tensor(entry["dtype"], data[8 + length + begin:8 + length + end], 0, entry["shape"], stride)
    return result


def values(tensor):
    code, size = FORMATS[tensor.dtype]
    if code is None:
        words = struct.unpack(f"<{len(tensor.bytes) // 2}H", tensor.bytes)
        return [struct.unpack("<f", struct.pack("<I", word << 16))[0] for word in words]
    return struct.unpack(f"<{len(tensor.bytes) // size}{code}", tensor.bytes)


def main():
    root = pathlib.Path(sys.argv[1])
    result = {}
    for folder in sorted(root.glob("hf-*")):
        tensors = {}
        for path in sorted(folder.glob("*.safetensors")):
            tensors.update(read_safetensors(path))
        for path in sorted(folder.glob("*.bin")):
            tensors.update(read_torch(path))
        result[folder.name] = {
            name: {"dtype": tensor.dtype, "shape": tensor.shape, "crc32": zlib.crc32(tensor.bytes),
                   "sum": math.fsum(values(tensor)), "sum_of_squares": math.fsum(v * v for v in values(tensor))}
            for name, tensor in sorted(tensors.items())}
    # One line a tensor.
    folders = [json.dumps(folder) + ": {\n" + ",\n".join(json.dumps(name) + ": " + json.dumps(tensor)
                                                        for name, tensor in tensors.items()) + "\n}"
               for folder, tensors in result.items()]
    print("{" + ",\n".join(folders) + "}")


if __name__ == "__main__":
    main()

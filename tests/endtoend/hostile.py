"""Hostile HDF5 files, made from scratch or by changing a dump; each returns words that the refusal must name."""

from __future__ import annotations

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t, h5z


def external_link(file, name, folder):
    with h5py.File(folder / "victim.h5", "w") as victim:
        victim["private"] = np.arange(4)
    file[name] = h5py.ExternalLink("victim.h5", "/private")
    return "link to another file", "victim.h5"


def soft_link(file, name, folder):
    file[name] = h5py.SoftLink("/somewhere\x1b[31m")
    return "soft link", "/somewhere\\x1b[31m"


def soft_loop(file, name, folder):
    file[name] = h5py.SoftLink("/b")
    file["b"] = h5py.SoftLink(f"/{name}")
    return ("soft link",)


def cycle(file, name, folder):
    file.create_group("inner")["self"] = file["/"]
    return ("contains itself",)


def external_storage(file, name, folder):
    (folder / "secret.txt").write_bytes(b"TOP-SECRET" * 100)
    file.create_dataset(name, (256,), "u1", external=[(str(folder / "secret.txt"), 0, 256)])
    return "values from another file", "secret.txt"


def virtual(file, name, folder):
    with h5py.File(folder / "victim.h5", "w") as victim:
        victim["private"] = np.arange(4)
    layout = h5py.VirtualLayout((4,), "i8")
    layout[:] = h5py.VirtualSource("victim.h5", "private", (4,))
    file.create_virtual_dataset(name, layout)
    return ("virtual dataset",)


def huge(file, name, folder):
    file.create_dataset(name, (1 << 45,), "f4", chunks=(1 << 20,))
    return "declares", str(1 << 47)


def huge_contiguous(file, name, folder):
    file.create_dataset(name, (1 << 45,), "f4")
    return "declares", str(1 << 47)


def not_stored(file, name, folder):
    file.create_dataset(name, (1 << 30,), "f4")
    return ("unpacks to",)


def bomb(file, name, folder):
    file.create_dataset(name, data=np.zeros(4 << 20, "f4"), chunks=(1 << 20,), compression="gzip", compression_opts=9)
    return ("unpacks to",)


def shuffled_bomb(file, name, folder):
    file.create_dataset(name, data=np.zeros(8 << 20, "u1"), chunks=(8 << 20,), compression="gzip", shuffle=True)
    return ("unpacks to",)


def unknown_filter(file, name, folder):
    created = h5p.create(h5p.DATASET_CREATE)
    created.set_chunk((16,))
    created.set_filter(32026, h5z.FLAG_OPTIONAL, (1, 2, 3))
    h5d.create(file.id, name.encode(), h5t.IEEE_F32LE, h5s.create_simple((64,)), created)
    return ("unknown filter 32026",)


def variable_length_text(file, name, folder):
    file.create_dataset(name, data=["x" * 1000] * 8, dtype=h5py.string_dtype())
    return ("H5T_STRING",)


def variable_length(file, name, folder):
    file.create_dataset(name, (3,), dtype=h5py.vlen_dtype(np.int32))
    return ("H5T_VLEN",)


def reference(file, name, folder):
    target = file.create_dataset("target", data=[1])
    file.create_dataset(name, data=np.array([target.ref]), dtype=h5py.ref_dtype)
    return ("H5T_REFERENCE",)


def compound(file, name, folder):
    file.create_dataset(name, (2,), dtype=np.dtype([("a", "f4", (1000, 1000)), ("b", "i8")]))
    return ("H5T_COMPOUND",)


def committed(file, name, folder):
    file[name] = np.dtype([("a", "f4", (1000, 1000)), ("b", "i8")])
    return ("H5O_TYPE_NAMED_DATATYPE",)


def opaque(file, name, folder):
    file.create_dataset(name, data=np.zeros(3, "V16"))
    return ("H5T_OPAQUE",)


def array_type(file, name, folder):
    kind = h5t.array_create(h5t.IEEE_F32LE, (1000, 1000))
    h5d.create(file.id, name.encode(), kind, h5s.create_simple((2,)))
    return ("H5T_ARRAY",)


def large_attribute(file, name, folder):
    file[name] = np.arange(3)
    file[name].attrs["x"] = np.zeros(6 << 20, "u1")
    return "attribute", "bytes"


def many_attributes(file, name, folder):
    for i in range(100):
        file.attrs[f"a{i}"] = i
    return ("100 attributes",)


def deep(file, name, folder):
    group = file
    for _ in range(2000):
        group = group.create_group("g")
    return ("nested deeper",)


def terminal_name(file, name, folder):
    file.create_dataset("x\n\x1b[31m", data=1)
    return "cannot be printed", "\\x1b"


def turning_name(file, name, folder):
    file.create_dataset("a\u202egnp.exe", data=1)
    return ("cannot be printed",)


def attribute_name(file, name, folder):
    file.attrs["a\x1bb"] = 1
    return ("cannot be printed",)


KINDS = {
    kind.__name__: kind
    for kind in (
        external_link, soft_link, soft_loop, cycle, external_storage, virtual, huge, huge_contiguous, not_stored, bomb,
        shuffled_bomb, unknown_filter, variable_length_text, variable_length, reference, compound, committed, opaque,
        array_type, large_attribute, many_attributes, deep, terminal_name, turning_name, attribute_name,
    )
}  # fmt: skip

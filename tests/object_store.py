"""An object store in memory, as pyarrow has them: what is closed is an object, and what is forgotten is closed."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs


class ObjectStore(pafs.FileSystemHandler):
    """Objects by key. `refuses`: what uploads say when they are to become objects."""

    type_name = "py::objects"  # as `pyarrow.fs.PyFileSystem` has it

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.refuses: OSError | None = None

    def get_type_name(self) -> str:
        return "objects"

    def get_file_info(self, paths: str | list[str]) -> list[pafs.FileInfo]:
        return [self._info(path) for path in ([paths] if isinstance(paths, str) else paths)]

    def get_file_info_selector(self, selector: Any) -> list[pafs.FileInfo]:
        inside = [key for key in self.objects if key.rpartition("/")[0] == selector.base_dir]
        return [self._info(key) for key in inside]

    def _info(self, path: str) -> pafs.FileInfo:
        if path not in self.objects:
            return pafs.FileInfo(path, pafs.FileType.NotFound)
        return pafs.FileInfo(path, pafs.FileType.File, size=len(self.objects[path]))

    def delete_file(self, path: str) -> None:
        if self.objects.pop(path, None) is None:
            raise FileNotFoundError(path)

    def move(self, src: str, dest: str) -> None:
        self.copy_file(src, dest)
        self.delete_file(src)

    def copy_file(self, src: str, dest: str) -> None:
        self.objects[dest] = self.objects[src]

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        if path not in self.objects:
            raise FileNotFoundError(path)
        return pa.BufferReader(self.objects[path])

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        return pa.PythonFile(_Upload(self, path), mode="w")

    # --- there are no directories -----------------------------------------------------------------------------

    def create_dir(self, path: str, recursive: bool) -> None: ...

    def delete_dir(self, path: str) -> None: ...

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None: ...

    def delete_root_dir_contents(self) -> None: ...

    def open_append_stream(self, path: str, metadata: object) -> pa.NativeFile:
        raise NotImplementedError

    def normalize_path(self, path: str) -> str:
        return path


class _Upload(io.BytesIO):
    def __init__(self, store: ObjectStore, key: str) -> None:
        super().__init__()
        self._store, self._key = store, key

    def close(self) -> None:
        """Also when the last one who knows it lets go of it."""
        if self.closed:
            return
        data = self.getvalue()
        super().close()
        if self._store.refuses is not None:
            raise self._store.refuses
        self._store.objects[self._key] = data

"""The stubs of objects have what the modules have."""

import ast
import pathlib

import pytest

import swarm
from swarm import aio, objects, views


@pytest.mark.parametrize("module", [objects, aio, views])
def test_each_stub_has_its_class_and_each_class_its_stub(module):
    stub = ast.parse(pathlib.Path(module.__file__).with_suffix(".pyi").read_text())
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    internal = {"Awaited", "Blocking", "Error", "NamedTuple"}
    there = {
        name
        for name, content in vars(module).items()
        if isinstance(content, type) and content.__module__ == module.__name__
        if name not in internal and not name.endswith("Base")
    }
    assert set(classes) == there
    for name, node in classes.items():
        methods = {
            inner.name
            for inner in node.body
            if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef))
        }
        bases = {base.id for base in node.bases} & set(classes)
        for base in bases:
            methods |= {
                inner.name for inner in classes[base].body if hasattr(inner, "name")
            }
        fields = {inner.target.id for inner in node.body if isinstance(inner, ast.AnnAssign)}
        public = {
            found
            for kind in getattr(module, name).__mro__
            if kind.__module__ in ("swarm.objects", "swarm.aio")
            for found in vars(kind)
            if not found.startswith("_")
        }
        assert methods - public - fields == {it for it in methods if it.startswith("__")}, name
        assert public - fields <= methods | {"may_have_taken_effect"}, name


def test_handles_have_the_same_objects_as_their_stubs():
    stub = ast.parse(pathlib.Path(swarm.__file__).with_suffix(".pyi").read_text())
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    made = {name for name in vars(swarm._Objects) if not name.startswith("_")}
    assert len(made) == 9
    for name in ("Store", "AsyncStore"):
        assert made <= {inner.name for inner in classes[name].body if hasattr(inner, "name")}

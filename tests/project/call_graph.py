"""Which function of the package can get to which other one, as far as its text says?

Only what can be told from names, imports and annotations is an edge: a name that is imported or defined in the file; a
method of an object whose class is annotated or constructed in view; for a protocol, the method of every class that has
all of its methods; and if nothing is known about an object, a method that takes what it is called with. Between
processes, a message leads to the functions that take it, and a kind of frame to the functions that ask for it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).parents[2] / "src" / "paceline"
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class Place(NamedTuple):
    """A function, `Class.method` or class of the package, as docs write it: `FILE: NAME`."""

    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"


class Module:
    """One file: what it defines, and what its imports mean."""

    def __init__(self, path: Path) -> None:
        self.file = path.relative_to(PACKAGE).as_posix()
        self.tree = ast.parse(path.read_text("utf-8"))
        self.functions: dict[str, ast.FunctionDef] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.names: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef):
                self.functions[node.name] = node
            elif isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
                methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
                self.functions |= {f"{node.name}.{one.name}": one for one in methods}
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.names.add(node.target.id)
        self.names |= {*self.functions, *self.classes}
        # Local name: the module it is from, and the name there, if it is not a module itself.
        self.imports: dict[str, tuple[str, str]] = {}
        for found in ast.walk(self.tree):
            if isinstance(found, ast.ImportFrom) and (found.module or "").startswith("paceline"):
                for alias in found.names:
                    self.imports[alias.asname or alias.name] = (found.module or "", alias.name)


class Package:
    """All files of the package. No two classes have the same name (`test_names.py`)."""

    def __init__(self) -> None:
        self.modules = {module.file: module for module in map(Module, sorted(PACKAGE.rglob("*.py")))}
        self.classes = {
            name: (module, node) for module in self.modules.values() for name, node in module.classes.items()
        }
        self.reached_by = cache(self._reached_by)
        self._assigned = cache(self._find_assigned)
        self._busy: set[tuple[str, str]] = set()

    def has(self, place: Place) -> bool:
        return place.file in self.modules and place.name in self.modules[place.file].names

    def _file_of(self, module: str) -> str | None:
        stem = "/".join(module.split(".")[1:])
        return next((file for file in (f"{stem}.py", f"{stem}/__init__.py") if file in self.modules), None)

    def find(self, module: Module, name: str) -> Place | None:
        """What a name in a file means: a function or class of the package."""
        if name in module.functions or name in module.classes:
            return Place(module.file, name)
        if name in module.imports:
            source, original = module.imports[name]
            file = self._file_of(source)
            if file is not None and original in self.modules[file].names:
                return Place(file, original)
        return None

    # -- classes

    def _bases(self, name: str) -> Iterator[str]:
        yield name
        for base in self.classes[name][1].bases:
            for one in _identifiers(base):
                if one in self.classes and one != name:
                    yield from self._bases(one)

    def _is_protocol(self, name: str) -> bool:
        return any("Protocol" in _identifiers(base) for base in self.classes[name][1].bases)

    def _methods(self, name: str) -> dict[str, Place]:
        found: dict[str, Place] = {}
        for base in self._bases(name):
            module = self.classes[base][0]
            for one in self.classes[base][1].body:
                if isinstance(one, ast.FunctionDef) and not one.decorator_list and not one.name.startswith("__"):
                    found.setdefault(one.name, Place(module.file, f"{base}.{one.name}"))
        return found

    def methods(self, owner: str, method: str) -> set[Place]:
        """What `object.method` is for an object of a class, or of any class that has what a protocol asks for."""
        own = self._methods(owner)
        if method not in own:
            return set()
        if not self._is_protocol(owner):
            return {own[method]}
        others = (self._methods(name) for name in self.classes if not self._is_protocol(name))
        return {other[method] for other in others if own.keys() <= other.keys()}

    # -- types

    def type_of(self, node: ast.expr, at: Scope) -> set[str]:
        """The classes of the package that an expression may be of, or may contain."""
        match node:
            case ast.Name(id="self") if at.owner:
                return {at.owner}
            case ast.Name(id=name):
                return at.local(name)
            case ast.Attribute(value=value, attr=attr):
                return set().union(*(self._attribute(owner, attr) for owner in self.type_of(value, at)))
            case ast.Call(func=function):
                found: set[str] = set()
                for place in self.meant(function, at):
                    module = self.modules[place.file]
                    if place.name in module.classes:
                        found.add(place.name)
                    else:
                        found |= _identifiers(module.functions[place.name].returns) & self.classes.keys()
                return found
            case ast.Subscript(value=value):
                return self.type_of(value, at)
            case ast.IfExp(body=body, orelse=orelse):
                return self.type_of(body, at) | self.type_of(orelse, at)
            case ast.ListComp(elt=element):
                return self.type_of(element, at)
        return set()

    def _attribute(self, owner: str, attr: str) -> set[str]:
        if (owner, attr) in self._busy:
            return set()
        self._busy.add((owner, attr))
        found: set[str] = set()
        for base in self._bases(owner):
            module, node = self.classes[base]
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and one.target.id == attr:
                    found |= _identifiers(one.annotation) & self.classes.keys()
            for value, scope in self._assigned(module, base, attr):
                found |= value if isinstance(value, set) else self.type_of(value, scope)
        self._busy.discard((owner, attr))
        return found

    def _find_assigned(self, module: Module, owner: str, attr: str) -> list[tuple[Any, Scope]]:
        """What the methods of a class assign to `self.attr`: expressions, or the classes of an annotation."""
        found: list[tuple[Any, Scope]] = []
        for name, function in module.functions.items():
            if not name.startswith(f"{owner}."):
                continue
            scope = Scope(self, module, Place(module.file, name))
            for one in ast.walk(function):
                if isinstance(one, ast.AnnAssign) and _is_own(one.target, attr):
                    found.append((_identifiers(one.annotation) & self.classes.keys(), scope))
                if isinstance(one, ast.Assign):
                    for target, value in _pairs(one):
                        if _is_own(target, attr):
                            found.append((value, scope))
        return found

    # -- edges

    def meant(self, node: ast.expr, at: Scope) -> set[Place]:
        """The functions or classes that an expression may be."""
        if isinstance(node, ast.Name):
            place = self.find(at.module, node.id)
            return {place} if place else set()
        if not isinstance(node, ast.Attribute):
            return set()
        if isinstance(node.value, ast.Name) and node.value.id in at.module.imports:
            source, original = at.module.imports[node.value.id]
            file = self._file_of(f"{source}.{original}")
            if file is not None and node.attr in self.modules[file].names:
                return {Place(file, node.attr)}
        found = set().union(*(self.methods(owner, node.attr) for owner in self.type_of(node.value, at)))
        if not found and at.owner and isinstance(node.value, ast.Name) and node.value.id == "self":
            # A method of another object that the constructor has kept.
            for value, scope in self._assigned(at.module, at.owner, node.attr):
                if isinstance(value, ast.Attribute):
                    found |= self.meant(value, scope)
        return found

    def _reached_by(
        self, place: Place, given: frozenset[Place] = frozenset()
    ) -> frozenset[tuple[Place, frozenset[Place]]]:
        """The functions that one refers to, each with those that are passed to it; `given` were passed to this one."""
        module = self.modules[place.file]
        function = module.functions.get(place.name)
        if function is None:
            return frozenset()
        at = Scope(self, module, place)
        found: dict[Place, set[Place]] = {one: set() for one in given}
        for node in ast.walk(function):
            if isinstance(node, ast.Name | ast.Attribute):
                for one in self.meant(node, at):
                    found.setdefault(one, set())
            if isinstance(node, ast.Call):
                arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
                passed = set().union(*(self.meant(argument, at) for argument in arguments))
                for one in self.meant(node.func, at):
                    found.setdefault(one, set()).update(passed | given)
                    if "messages.py" in one.file and one.name in self.modules[one.file].classes:
                        for taker in self._takers(one.name):
                            found.setdefault(taker, set())
                if isinstance(node.func, ast.Attribute) and not self.type_of(node.func.value, at):
                    # Who is asked is not known, but what it is asked with.
                    for taken in set().union(*(self.type_of(argument, at) for argument in arguments)):
                        for taker in self._takers(taken):
                            if taker.name.endswith(f".{node.func.attr}"):
                                found.setdefault(taker, set())
                for argument in arguments:
                    if (kind := _kind(argument)) and isinstance(node.func, ast.Attribute) and node.func.attr == "send":
                        for asker in self._askers(kind):
                            found.setdefault(asker, set())
        return frozenset((one, frozenset(passed)) for one, passed in found.items())

    @cache  # noqa: B019 (one package, for as long as the tests run)
    def _takers(self, message: str) -> frozenset[Place]:
        """The functions with an argument of this class."""
        return frozenset(
            Place(module.file, name)
            for module in self.modules.values()
            for name, function in module.functions.items()
            if any(message in _identifiers(one.annotation) for one in _arguments(function))
        )

    @cache  # noqa: B019
    def _askers(self, kind: str) -> frozenset[Place]:
        """The functions that compare with a kind of frame."""
        return frozenset(
            Place(module.file, name)
            for module in self.modules.values()
            for name, function in module.functions.items()
            if any(
                _kind(one) == kind for found in ast.walk(function) if isinstance(found, ast.Compare)
                for one in found.comparators
            )
        )  # fmt: skip

    def way(
        self, start: Place, goal: Place, by_way_of: Iterable[Place], given: frozenset[Place] = frozenset()
    ) -> frozenset[Place] | None:
        """Whether a function refers to another, itself or through functions of its file or these places; None if not.

        If so, the functions that are passed to the other. `given` were passed to the first.
        """
        allowed = {start, *by_way_of}
        files = {place.file for place in allowed}
        todo = [(start, given)]
        seen = {*todo}
        found: frozenset[Place] | None = None
        while todo:
            place, given = todo.pop()
            for one, passed in self.reached_by(place, given):
                if one == goal:
                    found = (found or frozenset()) | passed
                elif (one in allowed or one.file == place.file) and one.file in files and (one, passed) not in seen:
                    seen.add((one, passed))
                    todo.append((one, passed))
        return found


class Scope:
    """A function, and what its names are."""

    def __init__(self, package: Package, module: Module, place: Place) -> None:
        self.package, self.module = package, module
        self.function = module.functions[place.name]
        self.owner = place.name.partition(".")[0] if "." in place.name else ""
        self._busy: set[str] = set()

    def local(self, name: str) -> set[str]:
        """The classes that a variable may be of, by its annotation or by what is assigned to it."""
        if name in self._busy:
            return set()
        self._busy.add(name)
        try:
            return self._local(name)
        finally:
            self._busy.discard(name)

    def _local(self, name: str) -> set[str]:
        package, found = self.package, set()
        for node in ast.walk(self.function):
            match node:
                case ast.arg(arg=arg, annotation=annotation) if arg == name:
                    found |= _identifiers(annotation) & package.classes.keys()
                case ast.AnnAssign(target=ast.Name(id=target), annotation=annotation) if target == name:
                    found |= _identifiers(annotation) & package.classes.keys()
                case ast.Assign():
                    for target, value in _pairs(node):
                        if isinstance(target, ast.Name) and target.id == name:
                            found |= package.type_of(value, self)
                case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
                    if isinstance(target, ast.Name) and target.id == name:
                        found |= package.type_of(value, self)
                case ast.withitem(context_expr=value, optional_vars=ast.Name(id=target)) if target == name:
                    found |= package.type_of(value, self)
        return found


def _identifiers(node: ast.expr | None) -> set[str]:
    """All names in an annotation."""
    if node is None:
        return set()
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def _arguments(function: ast.FunctionDef) -> list[ast.arg]:
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def _is_own(target: ast.expr, attr: str) -> bool:
    return isinstance(target, ast.Attribute) and ast.unparse(target) == f"self.{attr}"


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment with its value; a tuple's one by one."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def _kind(node: ast.expr) -> str:
    """X in `Kind.X`."""
    is_kind = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Kind"
    return node.attr if is_kind and isinstance(node, ast.Attribute) else ""

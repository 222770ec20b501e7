"""Frozen values that cost next to nothing to define.

A frozen dataclass with slots takes 0.65 ms to define, because its methods are compiled at once and its class is made twice.
A short command defines dozens of values and uses few of them. So a frozen value is declared like a dataclass, and its
constructor is compiled when its first object is made:

    class Parent(Frozen):
        task: str
        turn: int | None = None

Everything else is as with a frozen dataclass with slots: keywords and defaults, equality, hash, repr, ``match``, copies, pickles.
``dataclasses.replace``, ``fields`` and ``asdict`` work too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

if TYPE_CHECKING:
    import inspect
    from dataclasses import replace as replace  # type checkers know the fields of each class

    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda made: made

    def replace(value, /, **changes):
        """A copy with other values in some fields."""
        return type(value)._copied(value, changes)


T = TypeVar("T")


class _Made:
    """A default that is made anew for each object."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def field(*, default_factory: Callable[[], T]) -> T:
    """A field whose default is made anew for each object."""
    return cast("T", _Made(default_factory))


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class FrozenType(type):
    """Makes classes of values. With ``kw_only``, the fields that a class adds are given by keyword only."""

    _field_names: tuple[str, ...]
    _field_defaults: dict[str, Any]
    _keyword_fields: frozenset[str]
    _field_values: Callable[[object], Any]
    """The values of all fields, as a tuple (of one field: its value)."""
    _copied: Callable[[Any, dict[str, Any]], Any]

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, kw_only: bool = False
    ) -> FrozenType:
        base = cast("FrozenType", bases[0]) if bases else None
        own = tuple(namespace.get("__annotations__", ()))
        names = (*base._field_names, *own) if base else own
        keywords = base._keyword_fields if base else frozenset[str]()
        defaults = {each: namespace.pop(each) for each in own if each in namespace}
        namespace["__slots__"] = own
        namespace["_field_names"] = names
        namespace["_field_defaults"] = {**base._field_defaults, **defaults} if base else defaults
        namespace["_keyword_fields"] = keywords = keywords.union(own) if kw_only else keywords
        namespace["_field_values"] = attrgetter(*names) if names else _no_values
        namespace["__match_args__"] = tuple(each for each in names if each not in keywords)

        def first_init(self: Any, *given: Any, **named: Any) -> None:
            _compile(made)
            made.__init__(self, *given, **named)  # type: ignore[misc]

        def first_copy(value: Any, changes: dict[str, Any]) -> Any:
            made._copied = _copier(made)
            return made._copied(value, changes)

        namespace.setdefault("__init__", first_init)
        namespace["_copied"] = staticmethod(first_copy)
        made = super().__new__(mcs, name, bases, namespace)
        return made

    @property
    def __signature__(cls) -> inspect.Signature:
        import inspect

        _compile(cls)
        found = inspect.signature(cls.__init__)  # type: ignore[misc]
        return found.replace(parameters=list(found.parameters.values())[1:])


def _no_values(value: object) -> tuple[()]:
    return ()


def _compile(cls: FrozenType) -> None:
    """Gives a class its real constructor. Two threads may do so at once: they give it the same."""
    scope: dict[str, Any] = {}
    positional, keywords, body = ["self"], list[str](), list[str]()
    for name in cls._field_names:
        scope[f"_set_{name}"] = getattr(cls, name).__set__
        parameter = name
        if name in cls._field_defaults:
            default = scope[f"_default_{name}"] = cls._field_defaults[name]
            parameter = f"{name}=_default_{name}"
            if isinstance(default, _Made):
                body.append(f"  if {name} is _default_{name}: {name} = _default_{name}.make()")
        body.append(f"  _set_{name}(self, {name})")
        (keywords if name in cls._keyword_fields else positional).append(parameter)
    if hasattr(cls, "__post_init__"):
        body.append("  self.__post_init__()")
    parameters = positional + (["*", *keywords] if keywords else [])
    exec(f"def __init__({', '.join(parameters)}):\n" + "\n".join(body or ["  pass"]), scope)
    made = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    cls.__init__ = made  # type: ignore[misc]


def _copier(cls: FrozenType) -> Callable[[Any, dict[str, Any]], Any]:
    """Makes the function that copies values of a class. It is on the path of every append, several times."""
    sets = {name: getattr(cls, name).__set__ for name in cls._field_names}
    scope: dict[str, Any] = {"cls": cls, "make": object.__new__, "sets": sets, "unknown": _unknown}
    body = ["  made = make(cls)"]
    for name, put in sets.items():
        scope[f"_set_{name}"] = put
        body.append(f"  _set_{name}(made, value.{name})")
    body += ["  for name in changes:", "    (sets.get(name) or unknown(cls, name))(made, changes[name])"]
    if hasattr(cls, "__post_init__"):
        body.append("  made.__post_init__()")
    exec("def copied(value, changes):\n" + "\n".join([*body, "  return made"]), scope)
    return staticmethod(scope["copied"])


def _unknown(cls: FrozenType, name: str) -> NoReturn:
    raise TypeError(f"{cls.__qualname__} has no field {name!r}")


_fields: dict[FrozenType, dict[str, Any]] = {}


class _DataclassFields:
    """What makes the functions of ``dataclasses`` work on values; made when one of them asks."""

    def __get__(self, value: object, cls: FrozenType) -> dict[str, Any]:
        found = _fields.get(cls)
        if found is None:
            found = _fields[cls] = dict(_dataclass_fields(cls))
        return found


def _dataclass_fields(cls: FrozenType) -> Iterator[tuple[str, Any]]:
    import dataclasses

    bases = [vars(each).get("__annotations__", {}) for each in reversed(cls.__mro__)]
    types = {name: kind for annotations in bases for name, kind in annotations.items()}
    for name in cls._field_names:
        default = cls._field_defaults.get(name, dataclasses.MISSING)
        if isinstance(default, _Made):
            made: Any = dataclasses.field(default_factory=default.make, kw_only=name in cls._keyword_fields)
        else:
            made = dataclasses.field(default=default, kw_only=name in cls._keyword_fields)
        made.name, made.type = name, types[name]
        made._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
        yield name, made


class Frozen(metaclass=FrozenType):
    """A frozen value; see this module."""

    if not TYPE_CHECKING:
        __dataclass_fields__ = _DataclassFields()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        values = type(self)._field_values
        return bool(values(self) == values(other))

    def __hash__(self) -> int:
        return hash(type(self)._field_values(self))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in type(self)._field_names)
        return f"{type(self).__qualname__}({fields})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise _frozen(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise _frozen(f"cannot delete field {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        cls = type(self)
        return _restored, (cls, {name: getattr(self, name) for name in cls._field_names})


def _restored(cls: FrozenType, values: dict[str, Any]) -> Any:
    made = object.__new__(cast("type[Any]", cls))
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _frozen(message: str) -> AttributeError:
    from dataclasses import FrozenInstanceError

    return FrozenInstanceError(message)

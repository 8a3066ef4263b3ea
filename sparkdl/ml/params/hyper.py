"""Params that are made on demand, for the arguments of a module's or optimizer's factory."""

from __future__ import annotations

from typing import Any, Self

from pyspark.ml.param import Param, Params

from sparkdl.exceptions import ConfigError
from sparkdl.ml.params import converters


class HasHyper(Params):
    """Mixin for Params that stand for arguments of the module's and the optimizer's factory.

    Such a Param is made when it is first asked for, by :meth:`hyper` or by its name, such as
    ``"module.hidden"``. It is then one of the ``params`` like any other: in grids, param maps, copies
    and saved estimators.
    """

    def hyper(self, name: str, of: str = "module") -> Param[Any]:
        """Return the Param that stands for an argument of a factory, for example for a grid.

        ::

            grid = ParamGridBuilder().addGrid(est.hyper("hidden"), [64, 256]).build()

        Args:
            name: name of the keyword argument.
            of: whose factory: ``"module"`` or ``"optimizer"``.

        Raises:
            ConfigError: if this names no argument.
        """
        if of not in ("module", "optimizer") or not isinstance(name, str) or not name.isidentifier():
            raise ConfigError(
                f"hyper({name!r}, of={of!r}): expected the name of a keyword argument, of 'module' or "
                "'optimizer'"
            )
        key = f"{of}.{name}"
        param = vars(self).get(key)
        if param is None:
            param = Param(self, key, f"argument {name!r} of the {of}'s factory.", converters.json_value)
            setattr(self, key, param)
            self._params = None  # Spark keeps the list of params
        return param

    def setHyper(self, of: str = "module", /, **values: Any) -> Self:
        """Set arguments of a factory: ``setHyper(hidden=64)``, ``setHyper("optimizer", momentum=0.9)``."""
        return self._set(**{self.hyper(name, of).name: value for name, value in values.items()})

    def getHyper(self, of: str = "module") -> dict[str, Any]:
        """Return the arguments of a factory that are set."""
        prefix = f"{of}."
        return {
            param.name.removeprefix(prefix): value
            for param, value in self._paramMap.items()
            if param.name.startswith(prefix)
        }

    def getParam(self, paramName: str) -> Param[Any]:
        """Return a Param by its name; one that stands for an argument is made if there is none yet."""
        of, dot, name = paramName.partition(".")
        return self.hyper(name, of) if dot else super().getParam(paramName)

"""What each name of `precision=` means, in both frameworks.

| name     | model cast | patched functions | BatchNorm | master weights | loss scale |
|----------|------------|-------------------|-----------|----------------|------------|
| float32  | no         | no                | float32   | no             | none       |
| bfloat16 | no         | bfloat16          | float32   | no             | none       |
| float16  | no         | float16           | float32   | no             | dynamic    |
| O0       | float32    | no                | float32   | no             | none       |
| O1       | no         | float16           | float32   | no             | dynamic    |
| O2       | float16    | no                | float32   | yes            | dynamic    |
| O3       | float16    | no                | float16   | no             | none       |

Model cast: the type of the model's parameters, and of the floating inputs that it is called on.
Patched functions: matrix products and convolutions compute in that type, sums and normalisations
in float32, weights stay as they are. Master weights: the optimizer steps on float32 copies, of
which the model's parameters are roundings. Loss scale: the loss is multiplied before backward and
the gradient divided after it is global; "dynamic" halves the scale when a gradient overflows, on
any rank, whose step all ranks then leave out, and doubles it after 2000 steps without. What a model
returns is float32, so a loss is computed in that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Type = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True)
class Precision:
    """One row of the table above.

    model: what parameters are cast to; None leaves them. functions: what patched functions compute
    in; None patches none. norms: whether BatchNorm keeps float32 where the model is cast.
    master: whether the optimizer steps on float32 copies. scales: whether the loss is scaled.
    """

    model: Type | None = None
    functions: Type | None = None
    norms: bool = True
    master: bool = False
    scales: bool = False


PRECISIONS: Mapping[str, Precision] = MappingProxyType(
    {
        "float32": Precision(),
        "bfloat16": Precision(functions="bfloat16"),
        "float16": Precision(functions="float16", scales=True),
        "O0": Precision(model="float32"),
        "O1": Precision(functions="float16", scales=True),
        "O2": Precision(model="float16", master=True, scales=True),
        "O3": Precision(model="float16", norms=False),
    }
)

INITIAL_SCALE = 2.0**16
GROWTH_INTERVAL = 2000
"""Steps without an overflow after which the scale is doubled."""

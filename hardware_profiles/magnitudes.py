"""Least and greatest values of the positive numbers that documents state: a formula of such numbers stays finite.

What a field allows may be narrower. The least are below anything that hardware, training or a measurement has.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

LEAST: Final = 1e-6
MOST: Final = 1e9
"""Both of a profile's numbers, in their own units."""
EPSILON: Final = 1e-30
"""Of numbers that a launch is given and no formula reads: an epsilon is small."""

ProfileNumber = Annotated[float, Field(ge=LEAST, le=MOST)]
Extent = Annotated[float, Field(ge=LEAST, le=1e18)]
Share = Annotated[float, Field(ge=1e-6, le=1.0)]
Factor = Annotated[float, Field(ge=1e-3, le=1024.0)]
Seconds = Annotated[float, Field(ge=1e-9, le=1e9)]
Milliseconds = Annotated[float, Field(ge=1e-6, le=1e9)]
Hours = Annotated[float, Field(ge=1e-3, le=1e9)]
Days = Annotated[float, Field(ge=1e-3, le=36_500.0)]
TokenCount = Annotated[float, Field(ge=1.0, le=1e18)]
TokensPerSecond = Annotated[float, Field(ge=1e-6, le=1e9)]
Teraflops = Annotated[float, Field(ge=1e-6, le=1e6)]
Gibibytes = Annotated[float, Field(ge=1e-3, le=1e6)]
GigabytesPerSecond = Annotated[float, Field(ge=1e-3, le=1e7)]
Watts = Annotated[float, Field(ge=1e-3, le=1e6)]
Price = Annotated[float, Field(ge=1e-6, le=1e6)]
Requests = Annotated[float, Field(ge=1e-3, le=1e7)]
BillionParameters = Annotated[float, Field(ge=1e-9, le=1e6)]
Interval = Annotated[float, Field(ge=1e-3, le=1e8)]
Work = Annotated[float, Field(ge=1e-3, le=10_000.0)]

"""Imported before all else: the libraries of a test process compute in one thread, as those of the product do.

A second thread of BLAS turns in circles between two small products, for three times the processor time.
"""

from __future__ import annotations

from autodeploy.kit.process import use_one_thread

use_one_thread()

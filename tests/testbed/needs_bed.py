"""The marks of a test module that runs on the bed: `pytestmark = NEEDS_BED`."""

from __future__ import annotations

import pytest

from tests.testbed.bed import missing_for_bed

MISSING = ", ".join(missing_for_bed())
NEEDS_BED = [pytest.mark.cluster, pytest.mark.skipif(bool(MISSING), reason=f"no bed here: {MISSING}")]

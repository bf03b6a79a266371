"""An error carries all that it was given."""

from __future__ import annotations

import pickle

from radweave.core.errors import InputError


def test_the_error_names_everything_it_was_given_and_survives_pickling() -> None:
    error = InputError("bad value", file="x.dcm", line=3, field="Rows", got=0, expected="at least 1")
    assert str(error) == "x.dcm, line 3, field 'Rows': bad value (got 0, expected at least 1)"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)

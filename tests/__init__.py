"""Tests of radweave. Helper modules are imported by their whole name, as in ``from tests.toys import ROOT``."""

"""Begins each build anew: setuptools would pack what an earlier version has left in build/lib."""

import pathlib
import shutil

import setuptools

shutil.rmtree(pathlib.Path(__file__).with_name("build") / "lib", ignore_errors=True)
setuptools.setup()

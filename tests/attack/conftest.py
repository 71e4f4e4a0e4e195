"""One world for all campaigns, restored for each test."""

import shutil

import pytest
from attack_world import World, build, environment


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> World:
    folder = tmp_path_factory.mktemp("world")
    world = World(folder / "base", folder / "template")
    world.base.mkdir()
    with environment(world.base):
        build(world.base)
    shutil.copytree(world.base, world.template)
    return world


@pytest.fixture
def world(built):
    with environment(built.base):
        built.restore()
        yield built

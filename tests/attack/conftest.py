"""One world for all campaigns, made anew for each."""

import pytest
from attack_world import World, environment, make_world


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(made):
    with environment(made.base):
        made.restore()
        yield made

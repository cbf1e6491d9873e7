"""The settings, with a language whose texts are ⟦…⟧ instead of our Chinese."""

import os

from reach_project.settings import *  # noqa: F403

LOCALE_PATHS = [os.environ["REACH_PSEUDO_LOCALE"]]

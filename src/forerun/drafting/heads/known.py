"""The kinds of draft heads. A head is of the first kind that recognises it."""

from typing import Final

from forerun.drafting.heads.assistant import ASSISTANT
from forerun.drafting.heads.dflash import DFLASH
from forerun.drafting.heads.eagle import EAGLE
from forerun.drafting.heads.mtp import MTP

ALL: Final = (ASSISTANT, DFLASH, EAGLE, MTP)

"""Tables from files: reading CSV and Parquet, interpreting the columns, and converting them to a matrix."""

from bayesadam.tabular.describe import describe as describe
from bayesadam.tabular.errors import TableError as TableError
from bayesadam.tabular.file import TableFile as TableFile
from bayesadam.tabular.findings import Findings as Findings
from bayesadam.tabular.inputs import Inputs as Inputs
from bayesadam.tabular.memory import NotEnoughMemory as NotEnoughMemory
from bayesadam.tabular.memory import available_memory as available_memory
from bayesadam.tabular.memory import require_memory as require_memory
from bayesadam.tabular.open import open_table as open_table
from bayesadam.tabular.preprocessing import Preprocessing as Preprocessing
from bayesadam.tabular.split import Split as Split
from bayesadam.tabular.split import copies_of as copies_of
from bayesadam.tabular.split import group_codes as group_codes
from bayesadam.tabular.split import group_split as group_split
from bayesadam.tabular.split import random_split as random_split
from bayesadam.tabular.split import require_all_classes as require_all_classes
from bayesadam.tabular.split import time_split as time_split
from bayesadam.tabular.target import TASKS as TASKS
from bayesadam.tabular.target import Target as Target
from bayesadam.tabular.target import numbers_of as numbers_of
from bayesadam.tabular.writing import table_writer as table_writer

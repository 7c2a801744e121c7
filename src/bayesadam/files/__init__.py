"""Files that are written whole or not at all, and read with a digest that detects damage."""

from bayesadam.files.locks import lock as lock
from bayesadam.files.locks import locked as locked
from bayesadam.files.reading import DamagedFile as DamagedFile
from bayesadam.files.reading import NoDigestWarning as NoDigestWarning
from bayesadam.files.reading import read_json as read_json
from bayesadam.files.reading import reading as reading
from bayesadam.files.reading import tell_no_digest as tell_no_digest
from bayesadam.files.tensors import FORMAT_VERSION as FORMAT_VERSION
from bayesadam.files.tensors import Stored as Stored
from bayesadam.files.tensors import dump_tensors as dump_tensors
from bayesadam.files.tensors import read_tensors as read_tensors
from bayesadam.files.tensors import write_tensors as write_tensors
from bayesadam.files.writing import beside as beside
from bayesadam.files.writing import is_temporary as is_temporary
from bayesadam.files.writing import remove_temporaries as remove_temporaries
from bayesadam.files.writing import sync_folder as sync_folder
from bayesadam.files.writing import whole_file as whole_file
from bayesadam.files.writing import write_json as write_json
from bayesadam.files.writing import write_text as write_text

"""What can be wrong with a row: numbers that compiled loops note, and that the parsers explain."""

NONE, NO_NUMBER, NOT_FINITE, LABEL_NO_NUMBER, LABEL_NOT_FINITE = range(5)
KEY_NO_NUMBER, KEY_BELOW_BASE, KEY_TOO_LARGE, TOO_FEW_FIELDS, TOO_MANY_FIELDS = range(5, 10)
DATA_CHECKSUM, NO_EXAMPLE, NO_LABEL, NO_INDEX, LENGTHS_DIFFER = range(10, 15)

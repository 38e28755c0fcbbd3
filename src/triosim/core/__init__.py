"""What knows nothing of the field: errors, parts by name, units, tables of columns, spans of time, files of users."""

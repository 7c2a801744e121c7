"""The application: estimators, files of tables, runs, the report and the command line."""

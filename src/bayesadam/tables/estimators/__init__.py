"""scikit-learn estimators of tables, which :mod:`bayesadam.sklearn` exports."""

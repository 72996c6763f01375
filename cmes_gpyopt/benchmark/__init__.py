"""Compare methods, ours and those of other libraries, on problems with known optima.

``python -m cmes_gpyopt.benchmark quality`` runs problems x methods x seeds, ``python -m cmes_gpyopt.benchmark report``
makes the tables. A run is an initial design of a few random points and then one suggestion after the other:

    values      objective values in their order, inf where the evaluation was infeasible
    evaluations number of suggestions, those after the initial points

Modules: ``methods`` and ``peers`` make suggestions, ``quality`` runs them, ``records`` stores a run as a line of a CSV
file, ``statistics`` holds the measures as functions of arrays, ``report`` the tables.
"""

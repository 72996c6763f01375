"""What importing does, the example scripts, and the test problems."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import qmc

import cmes_gpyopt
from cmes_gpyopt.problems import TOY

ROOT = Path(__file__).parents[1]


def python(code, **options):
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, **options)


def test_importing_is_silent_and_leaves_warnings_and_matplotlib_alone():
    code = (
        "import sys, warnings;"
        "import cmes_gpyopt, cmes_gpyopt.normal, cmes_gpyopt.entropy, cmes_gpyopt.feedback, cmes_gpyopt.problems;"
        "assert not {'matplotlib', 'GPy', 'GPyOpt'} & set(sys.modules), 'heavy import';"
        "from cmes_gpyopt import *;"
        "blanket = [f for f in warnings.filters if f[0] == 'ignore' and f[1] is None and f[2] is Warning];"
        "assert not blanket, blanket\n"
        "with warnings.catch_warnings(record=True) as heard: warnings.warn('heard')\n"
        "assert len(heard) == 1, 'silenced'"
    )
    out = python(code)
    assert out.stdout == out.stderr == ""


def test_the_library_works_without_matplotlib_and_says_what_a_plot_needs():
    code = (
        "import sys, importlib.machinery as m\n"
        "class Hide(m.PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('matplotlib', 'pylab'): return None\n"
        "        return m.PathFinder.find_spec(name, path, target)\n"
        "sys.meta_path = [f for f in sys.meta_path if f is not m.PathFinder] + [Hide]\n"
        "import numpy as np\n"
        "from cmes_gpyopt import ConstrainedBayesianOptimization\n"
        "bo = ConstrainedBayesianOptimization(lambda x: x[0, 0], [{'name': 'x', 'type': 'continuous',"
        " 'domain': (0, 1)}], acquisition_options={'grid_size': 50})\n"
        "bo.run_optimization(1)\n"
        "try: bo.plot_convergence()\n"
        "except ImportError as error: print(error)\n"
    )
    assert "pip install 'cmes_gpyopt[plot]'" in python(code).stdout


def test_every_public_name_can_be_imported():
    for name in cmes_gpyopt.__all__:
        assert getattr(cmes_gpyopt, name).__doc__
        assert name in dir(cmes_gpyopt)
    with pytest.raises(AttributeError, match="no attribute 'ConstrainedMSE'"):
        _ = cmes_gpyopt.ConstrainedMSE


def test_lower_layers_do_not_import_higher_ones():
    layers = ["normal", "entropy", "noisy", "feedback", "models", "search", "optima", "acquisitions", "driver"]
    for index, name in enumerate(layers):
        path = ROOT / "cmes_gpyopt" / name
        files = path.glob("*.py") if path.is_dir() else [path.with_suffix(".py")]
        for file in files:
            imported = set(re.findall(r"from \.+(\w+)? ?import|from \.+(\w+)", file.read_text()))
            names = {n for pair in imported for n in pair if n}
            assert not names & set(layers[index + 1 :]), (file.name, names)


def test_the_toy_example_prints_its_table_and_writes_its_picture(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(ROOT / "examples" / "toy_2d.py"), "--evaluations", "8", "--output", "toy.png"]
    out = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path, env=environment).stdout
    for word in ("evaluations", "infeasible", "best feasible value", "global optimum"):
        assert word in out
    assert (tmp_path / "toy.png").stat().st_size > 20_000


@pytest.mark.parametrize("problem", [TOY])
def test_problems_are_what_they_say(problem):
    X = problem.domain[0]["domain"][0] + 2 * qmc.Sobol(2, rng=0).random_base2(16)
    feasible = problem.feasible(X)
    assert problem.feasible(problem.x_opt)[0]
    assert problem.objective(np.atleast_2d(problem.x_opt))[0] == pytest.approx(problem.f_opt)
    assert problem.objective(X)[feasible].min() >= problem.f_opt
    assert feasible.mean() == pytest.approx(problem.feasible_fraction, abs=0.01)
    assert np.isinf(problem.with_failures(X).ravel()[~feasible]).all()

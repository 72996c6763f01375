"""A search on one page: ``write_report(bo, "report.html")``; needs matplotlib (``pip install 'cmes_gpyopt[plot]'``)."""

import base64
import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from . import __version__, plotting, spaces
from .driver import ConstrainedBayesianOptimization
from .errors import CMESError
from .plotting import causes_of_failure, shown

DPI = 110
MISSING = "\N{EN DASH}"

STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #62676e; --page: #ffffff; --card: #f4f5f7; --rule: #d9dce0;
  --bad: #b34700; --best: #e2f0fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e7e9; --soft: #a0a6ad; --page: #16181b; --card: #212428; --rule: #3a3f45;
    --bad: #ff9d5c; --best: #17364a; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 3rem; max-width: 72rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 1.2rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 0.7rem; padding-bottom: 0.25rem; border-bottom: 1px solid var(--rule); }
p { margin: 0.6rem 0; }
.note, caption, figcaption, footer { color: var(--soft); font-size: 0.87rem; }
.cards { display: flex; flex-wrap: wrap; gap: 0.8rem; margin: 0 0 1.2rem; }
.cards div { background: var(--card); border-radius: 8px; padding: 0.6rem 1rem; min-width: 9.5rem; }
.cards dt { color: var(--soft); font-size: 0.82rem; }
.cards dd { margin: 0; font-size: 1.35rem; font-weight: 600; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.87rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.28rem 0.75rem; text-align: right; border-bottom: 1px solid var(--rule); vertical-align: top;
  overflow-wrap: normal; }
td { white-space: nowrap; }
th { font-weight: 600; }
thead th { vertical-align: bottom; border-bottom: 2px solid var(--rule); }
th:first-child, td:first-child, th.words, td.words { text-align: left; }
td.words { white-space: pre-wrap; overflow-wrap: anywhere; min-width: 11rem; }
tr.infeasible td { color: var(--soft); }
tr.infeasible td.verdict { color: var(--bad); }
tr.best td { background: var(--best); font-weight: 600; }
figure { margin: 0 0 1.4rem; }
figure img { display: block; max-width: 100%; height: auto; background: #ffffff; border-radius: 8px; padding: 8px;
  border: 1px solid var(--rule); }
footer { margin-top: 2.5rem; }
@media print {
  :root { --ink: #000000; --soft: #444444; --page: #ffffff; --card: #f2f2f2; --rule: #bbbbbb; --bad: #8a3600;
    --best: #e6e6e6; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  .scroll { overflow: visible; }
  thead { display: table-header-group; }
  tr, figure, .cards div { break-inside: avoid; }
  h2 { break-after: avoid; }
}
"""


def write_report(
    bo: ConstrainedBayesianOptimization, path: str | os.PathLike[str], *, title: str | None = None
) -> Path:
    """Write a page about a search: summary, pictures, all evaluations, causes of failure and the model's parameters.

    The page is one HTML file that needs nothing else: pictures are part of it, there are no scripts, and nothing is
    loaded from elsewhere.

    Parameters
    ----------
    bo : ConstrainedBayesianOptimization
        With at least one evaluation; none need be feasible.
    path : str or path
        File to write; one that exists is replaced.
    title : str, optional
        Heading of the page; the name of the objective by default.

    Returns
    -------
    Path of the file

    Raises
    ------
    CMESError
        If there are no evaluations.
    """
    if len(bo.X) == 0:
        raise CMESError("there are no evaluations to report; call run_optimization first")
    heading = f"Search report: {bo.objective_name}" if title is None else title
    bo._update_model()
    recommendation = bo.recommend()
    sections = (
        _summary(bo, recommendation),
        _pictures(bo, recommendation),
        _history(bo),
        _causes(bo),
        _parameters(bo),
    )
    target = Path(path)
    # A lone surrogate, as in a file name that is not Unicode, becomes a reference instead of an error.
    target.write_text(_page(heading, sections), encoding="utf-8", errors="xmlcharrefreplace")
    return target


def _page(title: str, sections: Iterable[str]) -> str:
    written = f"written by cmes_gpyopt {__version__} on {datetime.now().astimezone():%Y-%m-%d %H:%M %Z}"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            _tag("title", escape(title)),
            _tag("style", STYLE),
            "</head>",
            "<body>",
            _tag("h1", escape(title)),
            *sections,
            _tag("footer", escape(written)),
            "</body>",
            "</html>",
            "",
        ]
    )


def _tag(name: str, content: str, **attributes: str) -> str:
    """An element around HTML that is already escaped; ``class_`` stands for class."""
    listed = "".join(f' {key.rstrip("_")}="{escape(value)}"' for key, value in attributes.items() if value)
    return f"<{name}{listed}>{content}</{name}>"


def _table(head: Sequence[str], rows: Iterable[str], *, words: Sequence[int] = (), id: str = "") -> str:
    """A table of rows made by :func:`_row`; the columns in ``words`` hold text."""
    cells = [
        _tag("th", escape(label), class_="words" if j in words else "", scope="col") for j, label in enumerate(head)
    ]
    parts = [_tag("thead", _tag("tr", "".join(cells))), _tag("tbody", "\n".join(rows))]
    return _tag("div", _tag("table", "\n".join(parts), id=id), class_="scroll")


def _row(cells: Sequence[str], *, words: Sequence[int] = (), verdict: int = -1, class_: str = "") -> str:
    kinds = ["words" if j in words else "verdict" if j == verdict else "" for j in range(len(cells))]
    return _tag(
        "tr", "".join(_tag("td", escape(c), class_=k) for c, k in zip(cells, kinds, strict=True)), class_=class_
    )


def _summary(bo: ConstrainedBayesianOptimization, recommendation: Any) -> str:
    count, failures, best = len(bo.X), int((~bo.feasible).sum()), _best_row(bo)
    cards = {
        "evaluations": str(count),
        "infeasible": f"{failures / count:.0%} ({failures})",
        "best feasible value": "none yet" if bo.fx_opt is None else shown(bo.fx_opt),
        "found at evaluation": MISSING if best is None else str(best + 1),
        "method": type(bo.acquisition).__name__,
    }
    listed = "".join(_tag("div", _tag("dt", escape(key)) + _tag("dd", escape(value))) for key, value in cards.items())
    return "\n".join(
        [
            _tag("dl", listed, class_="cards"),
            _tag("h2", "Best and recommended configuration"),
            _configurations(bo, recommendation),
            _tag("p", escape(_advice(recommendation)), class_="note"),
        ]
    )


def _best_row(bo: ConstrainedBayesianOptimization) -> int | None:
    """Number of the best feasible evaluation, from zero."""
    values = np.where(bo.feasible, bo.Y.ravel(), np.inf)
    return int(values.argmin()) if np.isfinite(values).any() else None


def _configurations(bo: ConstrainedBayesianOptimization, recommendation: Any) -> str:
    """Variables of the best evaluation beside those of the recommendation."""
    best: Mapping[str, Any] = {} if bo.x_opt is None else bo.variables(bo.x_opt)
    low, high = recommendation.interval
    rows = [
        _row([name, shown(best[name]) if best else MISSING, shown(value)])
        for name, value in recommendation.variables.items()
    ]
    observed = MISSING if bo.fx_opt is None else f"{shown(bo.fx_opt)} (observed)"
    seen = np.isfinite(bo.Y).any()
    expected = f"{shown(recommendation.mean)} ({shown(low)} to {shown(high)})" if seen else "never observed"
    rows.append(_row(["objective", observed, expected], class_="best"))
    rows.append(_row(["feasible", "yes" if best else MISSING, _percent(recommendation.probability)], class_="best"))
    return _table(["", "best evaluation", "recommendation"], rows, id="configurations")


def _percent(probability: float) -> str:
    """A probability in per cent that is called 0 or 100 % only where it is."""
    if 0.0 < probability < 0.001:
        return "below 0.1 %"
    if 0.999 < probability < 1.0:
        return "above 99.9 %"
    return f"{100 * probability:.1f} %"


def _advice(recommendation: Any) -> str:
    interval = "The interval holds the objective with probability 0.95."
    if recommendation.confident:
        return (
            f"The recommendation has the lowest expected objective of all points that are probably feasible. {interval}"
        )
    return f"No point is as probably feasible as it should be; the recommendation is the safest one. {interval}"


def _pictures(bo: ConstrainedBayesianOptimization, recommendation: Any) -> str:
    count = len(bo.space.space_expanded)
    convergence = plotting.figure((10.0, 3.8), register=False).subplots()
    caption = "Best feasible value so far (line), feasible evaluations (dots) and infeasible ones (crosses, by cause)"
    parts = [_tag("h2", "Progress"), _picture(plotting.plot_convergence(bo, convergence), caption)]
    if count <= 2:
        axes = plotting.plot_acquisition(bo, plotting.acquisition_axes(count, register=False))
        caption = "Model, probability of feasibility and acquisition, with the evaluations and the next suggestion"
        parts += [_tag("h2", "Model"), _picture(axes[0], caption)]
    if count > 1:  # with one variable the slice is the picture above
        axes = plotting.plot_slices(bo, plotting.slice_axes(count, register=False), x=recommendation.x)
        caption = "Along each variable through the recommendation (dotted), the other variables held there"
        parts += [_tag("h2", "Slices"), _picture(axes[0, 0], caption)]
    return "\n".join(parts)


def _picture(ax: Any, caption: str) -> str:
    """The figure an axes belongs to, as an image inside the page."""
    buffer = io.BytesIO()
    ax.figure.savefig(buffer, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    image = f'<img alt="{escape(caption)}" src="data:image/png;base64,{data}">'
    return _tag("figure", image + _tag("figcaption", escape(caption)))


def _history(bo: ConstrainedBayesianOptimization) -> str:
    constraints = bo.model.constraints
    head = ["number", *bo.variables(bo.X[0]), "objective", *map(_constraint_name, constraints), "feasible", "cause"]
    best, causes = _best_row(bo), causes_of_failure(bo)
    rows = []
    for i, good in enumerate(bo.feasible):
        values = [_observed(value, constraint) for value, constraint in zip(bo.C[i], constraints, strict=True)]
        objective = shown(bo.Y[i, 0]) if np.isfinite(bo.Y[i, 0]) else MISSING
        variables = [shown(value) for value in bo.variables(bo.X[i]).values()]
        cells = [str(i + 1), *variables, objective, *values, "yes" if good else "no", causes[i]]
        kind = "best" if i == best else "" if good else "infeasible"
        rows.append(_row(cells, words=[len(cells) - 1], verdict=len(cells) - 2, class_=kind))
    return _tag("h2", "Evaluations") + _table(head, rows, words=[len(head) - 1], id="history")


def _constraint_name(constraint: Any) -> str:
    return f"{constraint.name} ({'binary' if constraint.binary else f'at most {shown(constraint.upper)}'})"


def _observed(value: float, constraint: Any) -> str:
    """A constraint's label in words, or its value in the user's units."""
    if np.isnan(value):
        return MISSING
    if constraint.binary:
        return "holds" if value <= 0 else "violated"
    return shown(float(value + constraint.upper))


def _causes(bo: ConstrainedBayesianOptimization) -> str:
    counts = Counter(cause for cause in causes_of_failure(bo) if cause)
    heading = _tag("h2", "Causes of failure")
    if not counts:
        return heading + _tag("p", "No evaluation was infeasible.")
    rows = [_row([cause, str(n), f"{n / len(bo.X):.0%}"], words=[0]) for cause, n in counts.most_common()]
    return heading + _table(["cause", "evaluations", "share of all"], rows, words=[0], id="causes")


def _parameters(bo: ConstrainedBayesianOptimization) -> str:
    """Hyperparameters, a row for each latent function and a column for each parameter."""
    columns: dict[str, None] = {}
    functions: dict[str, dict[str, str]] = {}
    names, values = bo.model.get_model_parameters_names(), bo.model.get_model_parameters().ravel()
    for name, value in zip(names, values, strict=True):
        function, parameter = name.rsplit(".", 1)
        columns[parameter] = None
        functions.setdefault(function, {})[parameter] = f"{value:.3g}"
    inputs = _input_names(bo)
    head = ["", *(_parameter_name(parameter, inputs) for parameter in columns)]
    rows = [_row([name, *(found.get(c, MISSING) for c in columns)]) for name, found in functions.items()]
    note = (
        "Lengthscales are shares of a variable's range; variance and noise of the objective and of measured "
        "constraints are in units of the variance of what was observed."
    )
    return _tag("h2", "Model parameters") + _table(head, rows, id="parameters") + _tag("p", escape(note), class_="note")


def _input_names(bo: ConstrainedBayesianOptimization) -> list[str]:
    """What the columns of the model space are called."""
    names: list[str] = []
    for variable, columns in spaces._variables(bo.space):
        size = columns.stop - columns.start
        if variable.type == "categorical":
            names += [f"{variable.name} = {shown(value)}" for value in variable.domain]
        else:
            names += [variable.name if size == 1 else f"{variable.name}_{k + 1}" for k in range(size)]
    return names


def _parameter_name(parameter: str, inputs: Sequence[str]) -> str:
    match = re.fullmatch(r"lengthscale_(\d+)", parameter)
    return f"lengthscale of {inputs[int(match[1])]}" if match else parameter

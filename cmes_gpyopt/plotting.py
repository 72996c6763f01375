"""Pictures of a search; needs matplotlib (``pip install 'cmes_gpyopt[plot]'``).

Every function brings the model up to date with the evaluations, draws on the axes it is given or on a new pyplot
figure, and returns the axes, so that ``plot_convergence(bo).figure.savefig("run.png")`` works. None of them evaluates
the objective, and none changes what the search would suggest next.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import spaces
from ._gpyopt import Design_space
from .driver import ConstrainedBayesianOptimization
from .errors import CMESError
from .problems import Problem

Array = npt.NDArray[np.float64]

RESOLUTION = 161
SURFACE_RESOLUTION = 101
LINE_RESOLUTION = 201

# Half the width of a 95 % interval, in standard deviations.
BAND = 1.96

MAX_NUMBERED = 60
MAX_CAUSES = 4
MAX_TICKS = 8
MAX_TEXT = 40

# Most variables side by side in a picture of slices; with more there are several blocks.
MAX_COLUMNS = 4

# Scores beyond this stand for points that may not be suggested: outside the known constraints, or too likely to fail.
NO_SCORE = 1e100

# Of a score that is a logarithm only this much below its largest value is drawn: a factor of 7e10.
LOG_RANGE = 25.0

GOOD, BAD, MODEL, NEXT, BEST = "#0072B2", "#D55E00", "#0072B2", "#CC2F7B", "#111111"
CAUSE_COLOURS = (BAD, "#8C4FB0", "#009E73", "#B58900", "#777777")

# Height of the strip for evaluations without a value, as a share of the axes.
STRIP = 0.1

# Words in place of what cannot be drawn.
MIDDLE: dict[str, Any] = {"ha": "center", "va": "center", "color": "0.4"}

# A legend to the right of the axes.
BESIDE: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.02), "fontsize": 8, "frameon": False}


def plot_convergence(bo: ConstrainedBayesianOptimization, ax: Any = None) -> Any:
    """Draw the best feasible value against the number of evaluations.

    Feasible evaluations are dots; infeasible ones are crosses on a strip at the top, coloured by cause; the initial
    design is shaded.

    Parameters
    ----------
    bo : ConstrainedBayesianOptimization
        With at least one evaluation; none need be feasible.
    ax : matplotlib axes, optional
        A new figure by default.

    Returns
    -------
    the axes
    """
    _require_evaluations(bo)
    ax = figure((8.0, 3.8)).subplots() if ax is None else ax
    number = np.arange(1, len(bo.X) + 1)
    values = np.where(bo.feasible, bo.Y.ravel(), np.inf)
    seen = np.isfinite(values)
    _shade_initial(ax, bo)
    if seen.any():
        ax.plot(number[seen], values[seen], "o", color=GOOD, alpha=0.6, ms=5, label="feasible")
        found = np.isfinite(bo.Y_best)
        ax.step(number[found], bo.Y_best[found], where="post", color=BEST, lw=1.6, label="best so far")
    else:
        ax.set_yticks([])
        ax.text(0.5, 0.5, "no feasible evaluation yet", **MIDDLE, transform=ax.transAxes)
    _scale_below_strip(ax, values[seen], strip=not bo.feasible.all())
    _mark_causes(ax, number, causes_of_failure(bo))
    ax.set(xlim=(0.5, len(number) + 0.5), xlabel="evaluation", ylabel="objective")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.legend(**BESIDE)
    return ax


def plot_acquisition(bo: ConstrainedBayesianOptimization, axes: Any = None) -> Any:
    """Draw the model, the probability of feasibility, the acquisition and the next suggestion in one or two variables.

    With one variable: the posterior mean with its 95 % band and the evaluations, the probability of feasibility and
    the acquisition, one below the other. With two: the three surfaces side by side with the evaluations on top,
    numbered while they are few, dark where infeasible. Variables may be of any type.

    Parameters
    ----------
    bo : ConstrainedBayesianOptimization
        With at least one evaluation.
    axes : three matplotlib axes, optional
        A new figure by default.

    Returns
    -------
    array of three axes

    Raises
    ------
    CMESError
        With three variables or more; :func:`plot_slices` draws those.
    """
    count = len(bo.space.space_expanded)
    if count > 2:
        raise CMESError(f"plot_acquisition draws one or two variables, the domain has {count}; use plot_slices instead")
    _bring_up_to_date(bo)
    axes = acquisition_axes(count) if axes is None else _checked_axes(axes, (3,))
    if count == 1:
        _draw_one_variable(axes, bo)
    else:
        _draw_two_variables(axes, bo)
    return axes


def plot_slices(bo: ConstrainedBayesianOptimization, axes: Any = None, *, x: Any = None) -> Any:
    """Draw what the model says along each variable, with the other variables held where they are recommended.

    Each variable has a column: the posterior mean with its 95 % band, the probability of feasibility and the
    acquisition. Rows share their scale, so that the variables that matter stand out.

    Parameters
    ----------
    bo : ConstrainedBayesianOptimization
        With at least one evaluation.
    axes : array of matplotlib axes of shape (3, number of variables), optional
        A new figure by default.
    x : array of shape (d,), optional
        Point of the objective space through which to cut; the recommendation by default.

    Returns
    -------
    array of axes of shape (3, number of variables)
    """
    _bring_up_to_date(bo)
    variables = _variables_of(bo.space, LINE_RESOLUTION)
    axes = slice_axes(len(variables)) if axes is None else _checked_axes(axes, (3, len(variables)))
    centre = spaces.to_model(bo.space, np.atleast_2d(bo.recommend().x if x is None else np.asarray(x, dtype=float)))
    cuts = [_cut(variable, centre) for variable in variables]
    everything = _predict(bo, np.vstack(cuts))
    ends = np.cumsum([len(cut) for cut in cuts])
    for column, (variable, end, cut) in enumerate(zip(variables, ends, cuts, strict=True)):
        _draw_column(axes[:, column], variable, everything.part(slice(end - len(cut), end)))
        for ax in axes[:, column]:
            ax.axvline(variable.places_of(centre)[0], color=BEST, lw=1.0, ls=":", zorder=0)
        if column % _columns(len(variables)) == 0:
            _label_rows(axes[:, column], bo)
    _share_scale(axes[0], everything.mean - BAND * everything.std, everything.mean + BAND * everything.std)
    _share_scale(axes[2], everything.score, everything.score)
    return axes


def plot_search_2d(axes: Sequence[Any], bo: ConstrainedBayesianOptimization, problem: Problem, title: str) -> None:
    """Draw a search in two dimensions: the true objective, the probability of feasibility and the acquisition.

    Parameters
    ----------
    axes : three matplotlib axes
    bo : ConstrainedBayesianOptimization
        After a run; its model is brought up to date.
    problem : Problem
        Supplies the true surface and the true edge of the feasible region.
    title : str
        Shown beside the row.
    """
    _bring_up_to_date(bo)
    first, second = _variables_of(bo.space, RESOLUTION)
    upcoming = _suggestion(bo)
    grid, shape = _grid(first, second)
    predicted = _predict(bo, grid)
    inside = problem.feasible(grid).reshape(shape)
    surfaces = (
        ("objective", np.minimum(problem.objective(grid), 2.5), "viridis_r", None),
        ("probability of feasibility", predicted.probability, "RdYlGn", (0.0, 1.0)),
        ("acquisition", predicted.score, "magma", None),
    )
    for ax, (label, values, colours, limits) in zip(axes, surfaces, strict=True):
        _draw_surface(ax, first, second, values.reshape(shape), colours, limits)
        ax.contour(first.places, second.places, inside, [0.5], colors="white", linewidths=1.0)
        ax.set(title=label, aspect="equal")
    _mark_points(axes, bo, first, second, upcoming)
    axes[0].set_ylabel(f"{title}\n{text(second.name)}")
    axes[0].plot(*problem.x_opt, "+", color="red", markersize=12, markeredgewidth=2, label="global optimum")
    axes[0].legend(loc="lower right", fontsize=7, framealpha=0.9)


def finish(axes: Any, filename: str | None = None) -> Any:
    """Save the figure of these axes and let pyplot forget it, or without a file name show it; returns the axes."""
    import matplotlib.pyplot as plt

    drawn = np.ravel(np.asarray(axes, dtype=object))[0].figure
    if filename is not None:
        drawn.savefig(filename)
        plt.close(drawn)
    elif plt.get_backend().lower() != "agg":  # which has nowhere to show it
        plt.show()
    return axes


def causes_of_failure(bo: ConstrainedBayesianOptimization) -> list[str]:
    """Why each evaluation was infeasible: its recorded cause, or the constraints it violates; "" where feasible."""
    names = [constraint.name for constraint in bo.model.constraints]
    causes = []
    for cause, values, good in zip(bo.causes, bo.C, bo.feasible, strict=True):
        broken = [name for name, value in zip(names, values, strict=True) if value > 0]
        inferred = f"violates {', '.join(broken)}" if broken else "not all constraints observed"
        causes.append("" if good else cause or inferred)
    return causes


def shown(value: Any) -> str:
    """A value of a variable, an objective or a constraint in six digits, or as the words it is."""
    if isinstance(value, np.ndarray | tuple | list):
        return ", ".join(shown(item) for item in np.asarray(value, dtype=object).ravel())
    if isinstance(value, float | np.floating):
        return f"{value:.6g}"
    return str(value)


def text(words: str, limit: int = MAX_TEXT) -> str:
    """User's words as matplotlib draws them unchanged: one short line, no formulas, not hidden from legends."""
    line = " ".join("".join(c if c.isprintable() else " " for c in words).split())
    line = line if len(line) <= limit else line[: limit - 1] + "…"
    line = line.replace("$", r"\$")
    return f" {line}" if line.startswith("_") else line


def figure(size: tuple[float, float], *, register: bool = True) -> Any:
    """An empty figure, which pyplot shows and keeps, or without ``register`` knows nothing of."""
    try:
        import matplotlib.pyplot as plt
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots need matplotlib: install it with pip install 'cmes_gpyopt[plot]'") from error
    if register:
        return plt.figure(figsize=size, layout="constrained")
    return Figure(figsize=size, layout="constrained")


def slice_axes(count: int, *, register: bool = True) -> Any:
    """Axes of shape (3, count) on a new figure, in blocks of a few variables."""
    width = _columns(count)
    blocks = -(-count // width)
    parent = figure((width * min(4.0, 12.0 / width), 5.4 * blocks), register=register)
    grid = parent.add_gridspec(3 * blocks, width)
    axes = np.empty((3, count), dtype=object)
    for column in range(count):
        block, place = divmod(column, width)
        for row in range(3):
            axes[row, column] = parent.add_subplot(grid[3 * block + row, place])
    return axes


def _columns(count: int) -> int:
    """How many of ``count`` variables stand side by side, in blocks as equal as can be."""
    return -(-count // -(-count // MAX_COLUMNS))


def acquisition_axes(count: int, *, register: bool = True) -> Any:
    """Three axes on a new figure, for one variable or for two."""
    if count == 1:
        return figure((8.0, 7.0), register=register).subplots(3, 1, height_ratios=(2, 1, 1))
    return figure((13.0, 4.5), register=register).subplots(1, 3)


def _checked_axes(axes: Any, shape: tuple[int, ...]) -> npt.NDArray[np.object_]:
    array = np.asarray(axes, dtype=object)
    if array.size != np.prod(shape):
        raise CMESError(f"axes must have shape {shape}, got {array.shape}; leave them out to have a new figure")
    return array.reshape(shape)


def _require_evaluations(bo: ConstrainedBayesianOptimization) -> None:
    if len(bo.X) == 0:
        raise CMESError("there are no evaluations to draw; call run_optimization first")


def _bring_up_to_date(bo: ConstrainedBayesianOptimization) -> None:
    _require_evaluations(bo)
    bo._update_model()
    bo.acquisition.update()


@dataclass(frozen=True)
class _Variable:
    """One variable: the values at which it is drawn, and where on its axis."""

    name: str
    columns: slice
    """of the model space"""
    values: Array
    """(m, k), in those columns"""
    places: Array
    """(m,): the value itself where continuous, its number in the list of values where not"""
    labels: tuple[str, ...]
    """what the values are called; none where continuous"""

    def places_of(self, X: Array) -> Array:
        """Places of model-space points (n, d), (n,)."""
        block = X[:, self.columns]
        if not self.labels:
            return np.asarray(block[:, 0])
        distance = ((block[:, None, :] - self.values) ** 2).sum(axis=2)
        return np.asarray(distance.argmin(axis=1), dtype=float)

    def scattered_places_of(self, X: Array) -> Array:
        """The same, with points of equal value drawn beside each other."""
        if not self.labels:
            return self.places_of(X)
        return self.places_of(X) + 0.6 * (np.arange(1, len(X) + 1) * 0.6180339887 % 1.0 - 0.5)

    @property
    def edges(self) -> Array:
        """Borders of cells around the places, (m + 1,)."""
        half = 0.5 * (self.places[1] - self.places[0] if len(self.places) > 1 else 1.0)
        return np.append(self.places - half, self.places[-1] + half)


def _variables_of(space: Design_space, resolution: int) -> list[_Variable]:
    return [_variable(variable, columns, resolution) for variable, columns in spaces._variables(space)]


def _variable(variable: Any, columns: slice, resolution: int) -> _Variable:
    if variable.type == "continuous" and variable.domain[0] < variable.domain[1]:
        line = np.linspace(variable.domain[0], variable.domain[1], resolution)
        return _Variable(variable.name, columns, line[:, None], line, ())
    if variable.type == "categorical":
        values, labels = np.eye(len(variable.domain)), [shown(value) for value in variable.domain]
    elif variable.type == "bandit":
        values = np.asarray(variable.domain, dtype=float)
        labels = [f"({shown(value)})" for value in values]
    else:
        values = np.unique(np.asarray(variable.domain, dtype=float))[:, None]
        labels = [f"{value:g}" for value in values[:, 0]]
    return _Variable(variable.name, columns, values, np.arange(float(len(values))), tuple(labels))


def _cut(variable: _Variable, centre: Array) -> Array:
    """Model-space points (m, d) through ``centre`` (1, d) along a variable."""
    X = np.repeat(centre, len(variable.values), axis=0)
    X[:, variable.columns] = variable.values
    return X


def _grid(first: _Variable, second: _Variable) -> tuple[Array, tuple[int, int]]:
    """All pairs of values as model-space points, and the shape of their surface: rows are the second variable."""
    shape = len(second.values), len(first.values)
    down, across = np.indices(shape).reshape(2, -1)
    return np.hstack([first.values[across], second.values[down]]), shape


@dataclass(frozen=True)
class _Predicted:
    """What the model says at n points, each (n,); a score of nan is none."""

    mean: Array
    std: Array
    probability: Array
    score: Array

    def part(self, rows: slice) -> "_Predicted":
        return _Predicted(self.mean[rows], self.std[rows], self.probability[rows], self.score[rows])


def _predict(bo: ConstrainedBayesianOptimization, X: Array) -> _Predicted:
    mean, std = (a.ravel() for a in bo.model.predict(X))
    score = -bo.acquisition.acquisition_function(X).ravel()
    score = np.where(np.abs(score) < NO_SCORE, score, np.nan)
    if bo.acquisition.log_scale and np.isfinite(score).any():
        score = np.maximum(score, np.nanmax(score) - LOG_RANGE)
    return _Predicted(mean, std, bo.model.probability_feasible(X), score)


def _suggestion(bo: ConstrainedBayesianOptimization) -> Array:
    """The next points in the model space, (batch_size, d), or (0, d) where none is left."""
    try:
        return spaces.to_model(bo.space, bo.suggest_next_locations(context=bo.context))
    except CMESError:
        return np.empty((0, bo.space.model_dimensionality))


def _draw_one_variable(axes: Any, bo: ConstrainedBayesianOptimization) -> None:
    (variable,) = _variables_of(bo.space, LINE_RESOLUTION)
    upcoming = _suggestion(bo)
    predicted = _predict(bo, variable.values)
    _draw_column(axes, variable, predicted)
    _label_rows(axes, bo)
    y, good = bo.Y.ravel(), bo.feasible
    place, measured = variable.places_of(spaces.to_model(bo.space, bo.X)), np.isfinite(y)
    axes[0].plot(place[good & measured], y[good & measured], "o", color=BEST, ms=5, label="feasible")
    axes[0].plot(place[~good & measured], y[~good & measured], "X", color=BAD, ms=6, mec="white", label="infeasible")
    band = np.concatenate([predicted.mean - BAND * predicted.std, predicted.mean + BAND * predicted.std, y[measured]])
    _scale_below_strip(axes[0], band, strip=not measured.all())
    if not measured.all():
        _crosses(axes[0], place[~measured], BAD, "infeasible, not measured")
    for point in variable.places_of(upcoming):
        for ax in axes:
            ax.axvline(point, color=NEXT, lw=1.4, ls="--", label="next")
    handles, labels = axes[0].get_legend_handles_labels()
    shown_once = {label: h for h, label in zip(handles, labels, strict=True) if not _is_empty(h)}
    axes[0].legend(shown_once.values(), shown_once, **BESIDE)


def _is_empty(handle: Any) -> bool:
    return hasattr(handle, "get_xdata") and len(handle.get_xdata()) == 0


def _draw_two_variables(axes: Any, bo: ConstrainedBayesianOptimization) -> None:
    first, second = _variables_of(bo.space, SURFACE_RESOLUTION)
    upcoming = _suggestion(bo)
    grid, shape = _grid(first, second)
    predicted = _predict(bo, grid)
    surfaces = (
        (f"{_state(bo)} mean", predicted.mean, "viridis_r", None),
        ("probability of feasibility", predicted.probability, "RdYlGn", (0.0, 1.0)),
        (_score_name(bo), predicted.score, "magma", None),
    )
    for ax, (label, values, colours, limits) in zip(axes, surfaces, strict=True):
        _draw_surface(ax, first, second, values.reshape(shape), colours, limits)
        ax.set_title(label)
    _mark_points(axes, bo, first, second, upcoming)
    axes[0].set_ylabel(text(second.name))
    _label_marks(axes[0], bo)


def _state(bo: ConstrainedBayesianOptimization) -> str:
    return "posterior" if np.isfinite(bo.Y).any() else "prior"


def _score_name(bo: ConstrainedBayesianOptimization) -> str:
    return "log acquisition" if bo.acquisition.log_scale else "acquisition"


def _draw_column(axes: Sequence[Any], variable: _Variable, predicted: _Predicted) -> None:
    """Mean with band, probability and score along one variable: lines where continuous, else points and bars."""
    mean, half = predicted.mean, BAND * predicted.std
    if variable.labels:
        axes[0].errorbar(variable.places, mean, half, fmt="o", ms=5, capsize=3, color=MODEL, label="mean, 95 %")
        axes[1].bar(variable.places, predicted.probability, width=0.7, color="#009E73", alpha=0.7)
        axes[2].plot(variable.places, predicted.score, "D", ms=5, color="#8C4FB0")
    else:
        axes[0].fill_between(variable.places, mean - half, mean + half, color=MODEL, alpha=0.18, lw=0, label="95 %")
        axes[0].plot(variable.places, mean, color=MODEL, lw=1.6, label="mean")
        axes[1].fill_between(variable.places, 0.0, predicted.probability, color="#009E73", alpha=0.18, lw=0)
        axes[1].plot(variable.places, predicted.probability, color="#009E73", lw=1.6)
        axes[2].plot(variable.places, predicted.score, color="#8C4FB0", lw=1.6)
    if not np.isfinite(predicted.score).any():
        axes[2].set_yticks([])
        _say_nothing_allowed(axes[2])
    axes[1].set_ylim(0.0, 1.05)
    for ax in axes:
        _dress(ax, ax.xaxis, variable)
        ax.grid(alpha=0.25, lw=0.6)
    for ax in axes[:2]:
        ax.tick_params(labelbottom=False)
    axes[2].set_xlabel(text(variable.name))


def _label_rows(axes: Sequence[Any], bo: ConstrainedBayesianOptimization) -> None:
    for ax, label in zip(axes, (f"{_state(bo)} mean", "P(feasible)", _score_name(bo)), strict=True):
        ax.set_ylabel(label)


def _dress(ax: Any, axis: Any, variable: _Variable) -> None:
    """Limits of an axis, and the names of values that are not numbers on a line."""
    set_limits = ax.set_xlim if axis is ax.xaxis else ax.set_ylim
    if not variable.labels:
        set_limits(variable.places[0], variable.places[-1])
        return
    step = -(-len(variable.labels) // MAX_TICKS)
    labels = [text(label, 14) for label in variable.labels[::step]]
    crowded = axis is ax.xaxis and sum(map(len, labels)) > 24
    turned = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
    axis.set_ticks(variable.places[::step], labels, **turned)
    set_limits(variable.places[0] - 0.5, variable.places[-1] + 0.5)


def _share_scale(axes: Sequence[Any], low: Array, high: Array) -> None:
    low, high = low[np.isfinite(low)], high[np.isfinite(high)]
    if len(low) == 0:
        return
    bottom, top = _widened(low.min(), high.max())
    for ax in axes:
        ax.set_ylim(bottom - 0.05 * (top - bottom), top + 0.05 * (top - bottom))


def _widened(low: float, high: float) -> tuple[float, float]:
    """Limits that differ by enough to draw a scale."""
    size = max(abs(low), abs(high))
    if high - low > max(1e-9 * size, 1 / NO_SCORE):
        return low, high
    margin = 0.05 * size if size > 1 / NO_SCORE else 0.5
    return low - margin, high + margin


def _draw_surface(
    ax: Any, first: _Variable, second: _Variable, surface: Array, colours: str, limits: tuple[float, float] | None
) -> None:
    from matplotlib.ticker import MaxNLocator

    _dress(ax, ax.xaxis, first)
    _dress(ax, ax.yaxis, second)
    ax.set_xlabel(text(first.name))
    finite = surface[np.isfinite(surface)]
    if len(finite) == 0:
        _say_nothing_allowed(ax)
        return
    low, high = limits or _widened(finite.min(), finite.max())
    masked = np.clip(np.ma.masked_invalid(surface), low, high)
    if first.labels or second.labels:
        picture = ax.pcolormesh(first.edges, second.edges, masked, cmap=colours, vmin=low, vmax=high)
    else:
        picture = ax.contourf(first.places, second.places, masked, np.linspace(low, high, 41), cmap=colours)
    ax.figure.colorbar(picture, ax=ax, fraction=0.046, pad=0.03).locator = MaxNLocator(6)


def _say_nothing_allowed(ax: Any) -> None:
    ax.text(0.5, 0.5, "no point is allowed,\nor likely enough\nto be feasible", **MIDDLE, transform=ax.transAxes)


def _mark_points(
    axes: Sequence[Any], bo: ConstrainedBayesianOptimization, first: _Variable, second: _Variable, upcoming: Array
) -> None:
    """The next points as stars, and the evaluations in their order: light where feasible, dark where not."""
    X = spaces.to_model(bo.space, bo.X)
    points = np.column_stack([first.scattered_places_of(X), second.scattered_places_of(X)])
    star = np.column_stack([first.places_of(upcoming), second.places_of(upcoming)])
    for ax in axes:
        ax.plot(*star.T, "*", color="deepskyblue", ms=13, mec="black", zorder=5, clip_on=False, label="next")
        if len(points) <= MAX_NUMBERED:
            _number_evaluations(ax, points, bo.feasible)
        else:
            _dot_evaluations(ax, points, bo.feasible)


def _number_evaluations(ax: Any, points: Array, feasible: npt.NDArray[np.bool_]) -> None:
    size = 7.0 if len(points) <= MAX_NUMBERED // 2 else 5.5
    for order, (point, good) in enumerate(zip(points, feasible, strict=True), start=1):
        colour, back = ("black", "white") if good else ("white", "black")
        box = {"boxstyle": "circle,pad=0.12", "fc": back, "ec": colour, "lw": 0.5, "alpha": 0.85}
        ax.text(*point, str(order), fontsize=size, ha="center", va="center", color=colour, bbox=box)


def _dot_evaluations(ax: Any, points: Array, feasible: npt.NDArray[np.bool_]) -> None:
    ax.plot(*points[~feasible].T, "o", color="black", ms=3.5, mec="white", mew=0.4)
    ax.plot(*points[feasible].T, "o", color="white", ms=3.5, mec="black", mew=0.4)


def _label_marks(ax: Any, bo: ConstrainedBayesianOptimization) -> None:
    """A legend for the marks of :func:`_mark_points`, which are partly text."""
    for good, face, edge, label in ((True, "white", "black", "feasible"), (False, "black", "white", "infeasible")):
        if (bo.feasible == good).any():
            ax.plot([], [], "o", color=face, mec=edge, mew=0.5, ms=7, label=label)
    ax.legend(loc="upper left", bbox_to_anchor=(0.0, -0.14), ncols=3, fontsize=8, facecolor="0.85", framealpha=1.0)


def _scale_below_strip(ax: Any, values: Array, *, strip: bool) -> None:
    """Limits that show ``values``, on request clear of a grey strip along the top of the axes."""
    if len(values):
        low, high = _widened(values.min(), values.max())
        margin = 0.06 * (high - low)
        height = (high - low + 2 * margin) / (1.0 - STRIP * strip)
        ax.set_ylim(low - margin, low - margin + height)
    if strip:
        ax.fill_between([0.0, 1.0], 1.0 - STRIP, 1.0, transform=ax.transAxes, color="0.5", alpha=0.13, lw=0)


def _crosses(ax: Any, places: Array, colour: str, label: str) -> None:
    height = np.full(len(places), 1.0 - STRIP / 2)
    size = 6.0 if len(places) <= MAX_NUMBERED else 3.0
    style = {"color": colour, "ms": size, "mew": size / 4}
    ax.plot(places, height, "x", transform=ax.get_xaxis_transform(), label=label, **style)


def _shade_initial(ax: Any, bo: ConstrainedBayesianOptimization) -> None:
    height = np.append(spaces.is_row_of(bo.X, bo._initial), False).astype(float)
    style = {"color": "0.5", "alpha": 0.13, "lw": 0, "label": "initial design"}
    edges = np.arange(len(height)) + 0.5
    ax.fill_between(edges, 0.0, height, step="post", transform=ax.get_xaxis_transform(), **style)


def _mark_causes(ax: Any, number: npt.NDArray[np.int_], causes: list[str]) -> None:
    """Crosses on the strip, one colour for each of the most frequent causes and one for the rest."""
    counts = Counter(cause for cause in causes if cause)
    named = [cause for cause, _ in counts.most_common()]
    # A single cause too many takes the place of "other causes".
    named = named if len(named) <= MAX_CAUSES + 1 else named[:MAX_CAUSES]
    for cause, colour in zip(named, CAUSE_COLOURS, strict=False):
        where = np.array([other == cause for other in causes])
        _crosses(ax, number[where], colour, f"{text(cause)} ({counts[cause]})")
    rest = np.array([bool(cause) and cause not in named for cause in causes])
    if rest.any():
        _crosses(ax, number[rest], CAUSE_COLOURS[-1], f"other causes ({rest.sum()})")

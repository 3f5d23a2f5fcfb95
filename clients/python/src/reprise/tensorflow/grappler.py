# SPDX-License-Identifier: Apache-2.0
"""Keeps Grappler, TensorFlow's optimizer of graphs, away from graphs with a plan.

Grappler rewrites a graph again when it runs first. It removes ops, merges them and moves control
edges, so a step may no longer have the order and the peak of its plan; some rewrites end in a
cycle, which TensorFlow refuses. Its options belong to a session, or to the call of a function:
sessions on a planned graph are made, and planned functions are called, with Grappler off. So are
functions that call a planned one, because TensorFlow inlines it. All others keep their options.
"""

from __future__ import annotations

from functools import cache, wraps
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.client import session as sessions
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction

from reprise.base.saying import say

_say_once = cache(say)

# Set on graphs that Grappler must not rewrite.
_ATTRIBUTE = "_reprise_keeps_order"

# Sessions by their graph, and those that have run nothing.
_SESSIONS: WeakKeyDictionary[Any, WeakSet[Any]] = WeakKeyDictionary()
_UNUSED: WeakSet[Any] = WeakSet()
# What runs a session, or makes what runs it.
_RUNNING = (
    "run",
    "partial_run",
    "partial_run_setup",
    "make_callable",
    "_make_callable_from_options",
)


def keep_away(graph: Any) -> None:
    """Keeps Grappler away from a graph, and from those of the functions that it is traced in. Says
    so if a session on it has run already with Grappler on."""
    default = tf.compat.v1.get_default_session()
    made = {*_SESSIONS.get(graph, ()), *([default] if default is not None else [])}
    for session in made:
        is_off = session._config.graph_options.rewrite_options.disable_meta_optimizer
        if session.graph is not graph or session._closed or is_off:
            continue
        if session in _UNUSED:
            _renew(session)
        else:
            _say_once(
                "a session has run before its graph was planned, with Grappler on, which can put "
                "the step above its budget; run it after the last call of "
                "reprise.tensorflow.gradients"
            )
    while graph is not None:
        setattr(graph, _ATTRIBUTE, True)
        graph = getattr(graph, "outer_graph", None)


def _renew(session: Any) -> None:
    """Turns Grappler off for a session that holds nothing yet: gives it another one's session."""
    other = sessions.BaseSession(session._target, session.graph, without_grappler(session._config))
    session._session, other._session = other._session, session._session
    session._config = other._config
    other.close()


def without_grappler(config: Any) -> Any:
    """Returns a copy of a ConfigProto that turns Grappler and XLA's clustering off, and says so
    once if one of them was to change what the step computes."""
    changed = config_pb2.ConfigProto()
    changed.CopyFrom(config)
    options = changed.graph_options
    rewrites = options.rewrite_options
    off = rewriter_config_pb2.RewriterConfig.OFF
    set_to = {str(field.name): value for field, value in rewrites.ListFields()}
    # Those that lower the precision, and are on.
    names = [
        k for k, v in set_to.items() if k.startswith("auto_mixed_precision") and v and v != off
    ]
    if names and not rewrites.disable_meta_optimizer:
        _say_once(
            f"{names[0]} is a rewrite by Grappler, which a planned step does not go through: it "
            "runs in the precision that it is written in"
        )
    rewrites.disable_meta_optimizer = True
    options.optimizer_options.global_jit_level = config_pb2.OptimizerOptions.OFF
    return changed


def _replace(owner: Any, name: str, around: Any) -> None:
    plain = getattr(owner, name)

    @wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(plain, self, *args, **kwargs)

    setattr(owner, name, method)


def _session_made(
    plain: Any, session: Any, target: Any = "", graph: Any = None, config: Any = None
) -> None:
    """Makes a session, without Grappler on a planned graph."""
    runs = tf.compat.v1.get_default_graph() if graph is None else graph
    if getattr(runs, _ATTRIBUTE, False):
        before = context.context().config if config is None else config
        # What is no configuration is refused by TensorFlow.
        config = without_grappler(before) if isinstance(before, config_pb2.ConfigProto) else before
    plain(session, target, graph, config)
    _SESSIONS.setdefault(session.graph, WeakSet()).add(session)
    _UNUSED.add(session)


def _session_runs(plain: Any, session: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs a session, which may hold variables from now on."""
    _UNUSED.discard(session)
    return plain(session, *args, **kwargs)


def _function_called(plain: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a function, without Grappler if it is planned or calls one that is."""
    if not getattr(function._cached_graph, _ATTRIBUTE, False):
        return plain(function, *args, **kwargs)
    running = function._bound_context
    if not running.executing_eagerly():
        # The caller is traced now.
        keep_away(tf.compat.v1.get_default_graph())
        return plain(function, *args, **kwargs)
    before = running.function_call_options
    running.function_call_options = _as_planned(
        before.executor_type, before.config_proto_serialized or b""
    )
    try:
        return plain(function, *args, **kwargs)
    finally:
        running.function_call_options = before


@cache
def _as_planned(executor_type: str | None, config: bytes) -> Any:
    """Returns the options for a call of a planned function instead of those given."""
    made = without_grappler(config_pb2.ConfigProto.FromString(config))
    return context.FunctionCallOptions(executor_type, made)


# Sessions and calls of functions look at their graph from the import on, so that sessions that are
# made before a plan are known.
_replace(sessions.BaseSession, "__init__", _session_made)
for _name in _RUNNING:
    _replace(sessions.BaseSession, _name, _session_runs)
_replace(AtomicFunction, "call_flat", _function_called)

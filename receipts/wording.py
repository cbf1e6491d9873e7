"""How pages name call statuses, receipts and problem codes, in the reader's language."""

from collections.abc import Mapping

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from registry.wording import SENTENCES

CALL_STATUS: Mapping[str, Promise] = {
    "accepted": _("Accepted"),
    "running": _("Running"),
    "succeeded": _("Succeeded"),
    "failed": _("Failed"),
    "timed_out": _("Timed out"),
    "cancelled": _("Cancelled"),
    "rejected": _("Rejected"),
}
RECEIPT: Mapping[str, Promise] = {
    "accepted": _("Accepted: written down before anything was sent"),
    "routed": _("A node was chosen"),
    "forwarded": _("Sent to the node"),
    "acknowledged": _("The node has taken it on"),
    "running": _("At work"),
    "attempt_failed": _("The attempt failed"),
    "retry_scheduled": _("A retry is due"),
    "fallback": _("A fallback rule was applied"),
    "succeeded": _("Succeeded"),
    "failed": _("Failed"),
    "timed_out": _("Timed out"),
    "cancelled": _("Cancelled"),
    "rejected": _("Rejected"),
    "late_result": _("A result came too late; it changes nothing"),
    "recovered": _("Taken over from a process that is gone"),
}
STRATEGY: Mapping[str, Promise] = {
    "exact": _("one service"),
    "fuzzy": _("the most alike"),
    "weighted_random": _("by weight"),
    "latency_aware": _("the quickest"),
    "least_loaded": _("the least loaded"),
    "cost_aware": _("the cheapest"),
    "sticky": _("always the same"),
}
CALLBACK: Mapping[str, Promise] = {
    "waiting": _("Due when the call ends"),
    "pending": _("On its way"),
    "delivered": _("Delivered"),
    "gone": _("The receiver wants no more (410)"),
    "gave_up": _("Given up"),
}
WAITS = _("It waits for a node that can take it")
NOBODY_CHOSEN = _("No node could be chosen")
NODE_NOT_TOLD = _("The node could not be told that the call is cancelled")
PROBLEM: Mapping[str, Promise] = {
    "invalid_request": _("The request is malformed."),
    "forbidden": _("The caller may not do this."),
    "unknown_capability": _("No agent has ever declared this capability."),
    "loop_detected": _("The call would have run in a circle, or its chain is too deep."),
    "invalid_payload": _("The payload does not fit the input schema of any provider."),
    "rate_limited": _("Every able node is at its limit."),
    "upstream_error": _("The last attempt failed at the node."),
    "invalid_output": _("The node's answer does not fit its output schema."),
    "no_available_node": _("No node was able and ready."),
    "circuit_open": _("The breakers of the only able services are open."),
    "overloaded": _("The dispatcher had too much to do."),
    "unavailable": _("The reach's own database was away."),
    "deadline_exceeded": _("The time was spent before an answer came."),
    "cancelled": _("The call was cancelled before it ended."),
    # refusals that leave no call
    "unauthenticated": _("The key is missing, unknown, revoked or run out."),
    "not_found": _("There is nothing at this address."),
    "conflict": _("It does not go together with what has happened meanwhile."),
    "idempotency_conflict": _("The idempotency key stands for another request."),
    "payload_too_large": _("The body is too large."),
    "method_not_allowed": _("This address does not know the method."),
    "unsupported_media_type": _("The body is not JSON."),
}

ADVICE: Mapping[str, tuple[Promise, ...]] = {
    "invalid_request": (
        _("Compare the request with the description at /api/v1/docs, and send it again."),
        _("The place that is wrong is named above."),
    ),
    "forbidden": (
        _("If this caller should be let in: its name belongs into allow_callers, of the capability or of the route."),
        _("If not, call with the key of a service that is."),
    ),
    "unknown_capability": (
        _("Look for the name among the capabilities; a letter may be wrong."),
        _("If it is new: register an agent that declares it, and do the call again."),
    ),
    "loop_detected": (
        _("Follow the chain above: the same service was asked for the same thing again."),
        _("Let the agent that closes the circle answer by itself, or pass on a different payload."),
    ),
    "invalid_payload": (
        _("Mend the named places of the payload: the capability's page has the schema as a table."),
        _("If the payload is right, a provider's schema is too narrow, or the provider that takes it is gone."),
    ),
    "rate_limited": (
        _("Do it again later: the caller was told when."),
        _("If it happens often: add nodes, raise rate_limit or max_concurrency, or add a fallback rule that waits."),
    ),
    "upstream_error": (
        _("Look at the node: its page has its status and the last probe, its own log the call id."),
        _("When the node is mended, do the call again."),
    ),
    "invalid_output": (
        _("Compare the answer with the output schema that the node declares: one of the two is wrong."),
        _("A new version of the node that answers otherwise has to declare it, too."),
    ),
    "no_available_node": (
        _("See below why each candidate was left out, and mend what keeps the first of them out."),
        _("If none is listed: start a node that offers the capability, or let a route lead to one."),
    ),
    "circuit_open": (
        _("See why the attempts before failed: the breaker only says that too many did."),
        _("It tries again by itself within seconds; do the call again then."),
    ),
    "overloaded": (_("Add dispatchers, or let callers come more slowly; bulk calls yield first."),),
    "unavailable": (_("See that the database is back; then do the call again."),),
    "deadline_exceeded": (
        _("See in the waterfall where the time went: an attempt that hangs, or waits between attempts."),
        _("If the work takes longer: give the call a larger timeout_ms, or the capability a higher timeout tier."),
        _("Before doing it again, make sure that it has not been done: the node may still be at work."),
    ),
    "cancelled": (_("Somebody wished it so; the audit trail says who. Do it again if that was a mistake."),),
}
"""Problem code → what to try, in order."""
ADVICE_NOT_REPEATED = _(
    "If it may safely run twice, let the node declare the capability idempotent: then other nodes are tried, too."
)

SENTENCES.extend(
    [
        gettext_noop("cancelled by %(who)s"),
        gettext_noop("did not answer within %(seconds)s s"),
        gettext_noop("only a call that has failed is done again, and this one is %(status)s"),
        gettext_noop("it is being done again already, as call %(call)s"),
        gettext_noop("this is a mirrored copy: nobody has asked for it"),
        gettext_noop("no answer within %(seconds)s s"),
        gettext_noop("the call is not kept any more"),
        gettext_noop("its answer ended without a last word, succeeded or failed"),
        gettext_noop("line %(n)s of its answer is no receipt: %(reason)s"),
        gettext_noop("line %(n)s of its answer is larger than %(size)s bytes"),
    ]
)

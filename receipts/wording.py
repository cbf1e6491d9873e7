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
}

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

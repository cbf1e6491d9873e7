"""Who can be called: nodes out of the pool and why, services and capabilities that nobody can serve."""

from django.db.models import Exists, OuterRef
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from reach_project.doctor.findings import Findings, named, ok, warning
from registry.models import Capability, Declaration, Node, Service
from registry.querysets import able
from registry.wording import NODE_STATUS, label, said

NAMED = 20


def nodes() -> Findings:
    present = Node.objects.present()
    total, out = present.count(), present.exclude(able())
    left_out = out.count()
    if not total:
        yield ok("nodes", _("No node is registered yet"))
    elif not left_out:
        yield ok("nodes", ngettext("The %(n)s node is ready", "All %(n)s nodes are ready", total) % {"n": total})
    else:
        shown = out.select_related("lease").order_by("service_id", "node_id")[:NAMED]
        yield warning(
            "nodes",
            ngettext(
                "%(n)s of %(total)s nodes gets no calls: %(names)s",
                "%(n)s of %(total)s nodes get no calls: %(names)s",
                left_out,
            )
            % {"n": left_out, "total": total, "names": named([why_out(node) for node in shown])},
            _("The page of each node shows its last probe and has a button to probe it now."),
        )


def why_out(node: Node) -> str:
    status = node.status
    words = label(NODE_STATUS, status.name)
    return f"{node} ({words}: {said(status.reason)})" if status.reason else f"{node} ({words})"


def services() -> Findings:
    nodes = Node.objects.present().filter(service=OuterRef("pk"))
    stranded = Service.objects.filter(Exists(nodes)).exclude(Exists(nodes.filter(able())))
    if names := list(stranded.order_by("pk").values_list("pk", flat=True)):
        yield warning(
            "services",
            ngettext(
                "%(n)s service has nodes, but none that can take a call: %(names)s",
                "%(n)s services have nodes, but none that can take a call: %(names)s",
                len(names),
            )
            % {"n": len(names), "names": named(names)},
            _("Mend or start its nodes, or enable one that was taken out."),
        )


def capabilities() -> Findings:
    declared = Declaration.objects.filter(capability=OuterRef("pk"), node__deleted_at=None)
    stranded = Capability.objects.exclude(Exists(declared.filter(able("node__"))))
    if names := list(stranded.order_by("pk").values_list("pk", flat=True)):
        yield warning(
            "capabilities",
            ngettext(
                "%(n)s capability has no provider that can take a call: %(names)s",
                "%(n)s capabilities have no provider that can take a call: %(names)s",
                len(names),
            )
            % {"n": len(names), "names": named(names)},
            _("Start an agent that declares it; one that was given up stays known, and can be left alone."),
        )


def required() -> Findings:
    """What nodes say they need, and nobody offers."""
    needed = {name for requires in Node.objects.present().values_list("requires", flat=True) for name in requires}
    offered = set(
        Declaration.objects.filter(capability__in=needed, node__deleted_at=None).values_list("capability", flat=True)
    )
    if missing := sorted(needed - offered):
        yield warning(
            "requirements",
            _("Agents require what nobody offers: %(names)s") % {"names": named(missing)},
            _("Start an agent that declares it."),
        )


OF_A_PREPARED_DATABASE = (nodes, services, capabilities, required)

"""A plan as an AscendJob for Kubernetes with Volcano: one pod a node, which runs the plan's launch script.

Fields follow the sample of Ascend's mind-cluster (docs/zh/scheduling/api/ascend_job.md); its operator sets MASTER_ADDR,
MASTER_PORT and RANK, the number of the node. The launch script itself comes from a ConfigMap in the same file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autodeploy.formats.common.flag_effects import profile_of
from autodeploy.formats.megatron.launch_script import asked_for, export_mindspeed_llm
from autodeploy.kit.errors import UnsupportedError
from autodeploy.kit.yaml_text import yaml_text
from autodeploy.messages import Message
from autodeploy.specs.artefact import Artefact, provenance_line
from autodeploy.specs.spec import spec_of
from hardware_profiles import list_profiles, load_profile

if TYPE_CHECKING:
    from autodeploy.specs.planset import Plan, PlanSet
    from hardware_profiles.schema import JobSelector

RESOURCE = "huawei.com/Ascend910"
SET_BY_OPERATOR = ("MASTER_ADDR", "NODE_RANK")
MASTER_PORT = 2222


def export(plan_set: PlanSet, plan: Plan) -> Artefact:
    """The ConfigMap with the script and the job, as two YAML documents.

    Raises UnsupportedError where the plan is for other chips, or for part of a node beside whole ones.
    """
    spec = spec_of(plan_set.search)
    profile = profile_of(spec)
    if profile is None or profile.document.ascendjob is None:
        profiles = ", ".join(name for name in list_profiles() if load_profile(name).document.ascendjob is not None)
        raise UnsupportedError(
            Message("exporters.cannot_launch_axis", target="AscendJob", axis="profile", value=spec.cluster.profile),
            path="/cluster/profile",
            hint=Message("common.one_of", names=profiles),
        )
    ranks = plan.num_npus_used * profile.devices_per_npu
    per_node = min(ranks, profile.ranks_per_node)
    if ranks % per_node:
        raise UnsupportedError(Message("common.partial_nodes", ranks=ranks, size=per_node), path="/cluster/num_npus")
    name = f"autodeploy-{plan.plan_id.replace('_', '-')}"
    script = export_mindspeed_llm(plan_set, plan)
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "annotations": _annotations(plan_set, plan)},
        "data": {"pretrain.sh": script.text},
    }
    block = _logical_supernode(ranks, per_node, profile.ranks_per_node * (profile.supernode_nodes or 0))
    job = _job(plan_set, plan, name, profile.document.ascendjob, ranks // per_node, per_node)
    for replica in job["spec"]["replicaSpecs"].values():
        environment = replica["template"]["spec"]["containers"][0]["env"]
        environment += [
            {"name": asked, "value": ""} for asked in asked_for(script.text) if asked not in SET_BY_OPERATOR
        ]
    if block is not None:
        job["metadata"]["annotations"]["sp-block"] = str(block)
    notes = (Message("exporters.fill_in_and_compare"), *script.notes)
    comments = [provenance_line(plan_set, plan), *(f"Note: {note}" for note in notes)]
    text = yaml_text(config, comments) + "---\n" + yaml_text(job)
    return Artefact(text, "application/yaml", f"ascendjob_{plan.plan_id}.yaml", notes)


def _logical_supernode(ranks: int, per_node: int, largest: int) -> int | None:
    """Chips of one logical supernode (annotation `sp-block`): the job in as few equal parts as supernodes hold."""
    if largest == 0:
        return None
    parts = -(-ranks // largest)
    return ranks // parts if ranks % (parts * per_node) == 0 else None


def _annotations(plan_set: PlanSet, plan: Plan) -> dict[str, str]:
    search = plan_set.search
    return {"autodeploy/plan": plan.plan_id, "autodeploy/engine-version": search.engine_version}


def _job(plan_set: PlanSet, plan: Plan, name: str, selector: JobSelector, nodes: int, per_node: int) -> dict[str, Any]:
    replicas: dict[str, Any] = {"Master": _replica(1, name, selector, per_node)}
    if nodes > 1:
        replicas["Worker"] = _replica(nodes - 1, name, selector, per_node)
    return {
        "apiVersion": "mindxdl.gitee.com/v1",
        "kind": "AscendJob",
        "metadata": {
            "name": name,
            "labels": {"framework": "pytorch", "ring-controller.atlas": selector.label},
            "annotations": _annotations(plan_set, plan),
        },
        "spec": {
            "schedulerName": "volcano",
            "runPolicy": {"schedulingPolicy": {"minAvailable": nodes, "queue": "default"}},
            "successPolicy": "AllWorkers",
            "replicaSpecs": replicas,
        },
    }


def _replica(count: int, name: str, selector: JobSelector, per_node: int) -> dict[str, Any]:
    same_job = {"matchExpressions": [{"key": "job-name", "operator": "In", "values": [name]}]}
    apart = [{"labelSelector": same_job, "topologyKey": "kubernetes.io/hostname"}]
    return {
        "replicas": count,
        "restartPolicy": "Never",
        "template": {
            "metadata": {"labels": {"ring-controller.atlas": selector.label}},
            "spec": {
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}},
                "nodeSelector": {"host-arch": "huawei-arm", "accelerator-type": selector.accelerator_type},
                "containers": [_container(per_node)],
                "volumes": [
                    {"name": "script", "configMap": {"name": name}},
                    {"name": "ascend-driver", "hostPath": {"path": "/usr/local/Ascend/driver"}},
                    {"name": "dshm", "emptyDir": {"medium": "Memory"}},
                ],
            },
        },
    }


def _container(per_node: int) -> dict[str, Any]:
    """The container has to be named `ascend` and its port `ascendjob-port`: the operator looks for them."""
    visible = {"fieldRef": {"fieldPath": f"metadata.annotations['{RESOURCE}']"}}
    environment: list[dict[str, Any]] = [
        {"name": "XDL_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "ASCEND_VISIBLE_DEVICES", "valueFrom": visible},
    ]
    return {
        "name": "ascend",
        "image": "mindspeed-llm:latest",
        "imagePullPolicy": "IfNotPresent",
        "workingDir": "/job/MindSpeed-LLM",
        "env": environment,
        "command": ["/bin/bash", "-c", 'NODE_RANK="${RANK}" bash /job/script/pretrain.sh'],
        "ports": [{"containerPort": MASTER_PORT, "name": "ascendjob-port"}],
        "resources": {"limits": {RESOURCE: per_node}, "requests": {RESOURCE: per_node}},
        "volumeMounts": [
            {"name": "script", "mountPath": "/job/script"},
            {"name": "ascend-driver", "mountPath": "/usr/local/Ascend/driver"},
            {"name": "dshm", "mountPath": "/dev/shm"},
        ],
    }

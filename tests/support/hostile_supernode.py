"""A hostile SuperNode, which replies twice to every message.

It is a program of its own, since Flower's SuperNode sends what its ClientApp returns once and completely. It has the
node's key and uses the SuperLink's protocol, so that only the SuperLink could refuse it.
"""

from __future__ import annotations

import sys

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient

push_once = FleetHttpClient.PushMessages


def push_twice(client: FleetHttpClient, request: PushMessagesRequest) -> PushMessagesResponse:
    answer = push_once(client, request)
    reply = message_from_proto(request.messages_list[0])
    false = {"w": Array(np.full(40, 1e6)), "steps": Array(np.array(0))}
    content = RecordDict({"arrays": ArrayRecord(false), "metrics": MetricRecord({"num-examples": 1})})
    second = make_message(metadata=reply.metadata, content=content)
    second.metadata.__dict__["_message_id"] = second.object_id
    wanted = push_once(
        client,
        PushMessagesRequest(
            node=request.node,
            messages_list=[message_to_proto(remove_content_from_message(second))],
            message_object_trees=[get_object_tree(second)],
        ),
    )
    for key, thing in get_all_nested_objects(second).items():
        if key in wanted.objects_to_push:
            sent = PushObjectRequest(
                node=request.node,
                run_id=reply.metadata.run_id,
                session_id=wanted.session_id,
                object_id=key,
                object_content=thing.deflate(),
            )
            client.PushObject(sent)
    print(f"Sent a second reply; the SuperLink took {len(wanted.objects_to_push)} of its objects", flush=True)
    return answer


if __name__ == "__main__":
    FleetHttpClient.PushMessages = push_twice
    sys.exit(flower_supernode())

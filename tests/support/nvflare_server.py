"""NVFlare's controllers and communicator in this process, with functions in the place of sites."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace
from unittest.mock import patch

from nvflare.apis.client import Client
from nvflare.apis.dxo import DXO
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContextManager
from nvflare.apis.impl.wf_comm_server import WFCommServer
from nvflare.apis.shareable import make_reply
from nvflare.apis.signal import Signal
from nvflare.apis.utils.event import fire_event_to_components
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.abstract.model import make_model_learnable
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import FullModelShareableGenerator
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.app_common.workflows.scatter_and_gather import ScatterAndGather

import bartizan as bz


@dataclass(frozen=True)
class RaisesOnce(bz.Mean):
    """A plug-in's rule that raises the error that is put into `ERRORS`, once."""

    def weigh(self, geometry):
        if ERRORS:
            raise ERRORS.pop()
        return super().weigh(geometry)


ERRORS = []


class FinishedFedAvg(FedAvg):
    """FedAvg that keeps its model in memory."""

    def save_model(self, model):
        self.final = model


def fedavg(aggregator, model, n_sites, rounds=1, **settings):
    start = {"model": model, "persistor_id": "", "aggregator": aggregator, "task_check_period": 0.01}
    return FinishedFedAvg(num_clients=n_sites, num_rounds=rounds, **start, **settings)


def scatter_and_gather(model, n_sites, rounds=1, **settings):
    """The workflow of FedOpt and of older jobs."""
    often = {"task_check_period": 0.01, "snapshot_every_n_rounds": 0, "wait_time_after_min_received": 0}
    controller = ScatterAndGather(n_sites, rounds, **often, **settings)
    controller._global_weights = make_model_learnable(model, {})
    return controller


class Server:
    """Runs a controller with this aggregator; `answers` has each site's function from the model sent to its answer.

    An answer is an FLModel, a return code, or None where the site never answers.
    """

    def __init__(self, folder, aggregator, controller, answers):
        self.folder, self.answers, self.panics = folder, answers, []
        self.clients = {name: Client(name, f"token of {name}") for name in answers}
        self.components = {"aggregator": aggregator, "shareable_generator": FullModelShareableGenerator()}
        self.controller = controller
        self.controller._engine = self
        self.communicator = WFCommServer(task_check_period=0.01)
        self.controller.set_communicator(self.communicator)
        self.handlers = [aggregator, self.controller]
        self.abort = Signal()
        runner = SimpleNamespace(current_wf=SimpleNamespace(controller=self.controller))
        self.contexts = FLContextManager(self, "server", "job", private_stickers={FLContextKey.RUNNER: runner})

    # What controllers ask of NVFlare's engine.
    run_manager = None

    def get_clients(self):
        return list(self.clients.values())

    def get_cell(self):
        return None

    def get_component(self, name):
        return self.components.get(name)

    def get_workspace(self):
        return SimpleNamespace(get_result_root=lambda job: str(self.folder), get_run_dir=lambda job: str(self.folder))

    def new_context(self):
        return self.contexts.new_context()

    def fire_event(self, event, fl_ctx):
        if event == EventType.FATAL_SYSTEM_ERROR:
            self.panics.append(fl_ctx.get_prop(FLContextKey.EVENT_DATA))
            self.abort.trigger(True)
        fire_event_to_components(event, self.handlers, fl_ctx)

    def run(self, most=60):
        """Run to the end; return the model, or raise what ended the job."""
        fl_ctx = self.new_context()
        self.fire_event(EventType.START_RUN, fl_ctx)
        self.controller.start_controller(fl_ctx)
        self.communicator.initialize_run(fl_ctx)
        flow = threading.Thread(target=self.controller.control_flow, args=(self.abort, fl_ctx), daemon=True)
        flow.start()
        answered, end = set(), time.monotonic() + most
        while flow.is_alive() and time.monotonic() < end:
            for name in self.clients:
                task, task_id, data = self.communicator.process_task_request(self.clients[name], self.new_context())
                if task and task_id not in answered:
                    answered.add(task_id)
                    self.answer(name, task_id, FLModelUtils.from_shareable(data))
            time.sleep(0.005)
        hung = flow.is_alive()
        self.abort.trigger(True)
        flow.join(10)
        self.communicator.finalize_run(fl_ctx)
        self.fire_event(EventType.END_RUN, fl_ctx)
        if self.panics or hung:
            raise RuntimeError(self.panics or "the job did not end")
        if isinstance(self.controller, FedAvg):
            return self.controller.final
        return FLModelUtils.from_model_learnable(self.controller._global_weights)

    def answer(self, name, task_id, model):
        answer = self.answers[name](model)
        if answer is not None:
            self.submit(name, task_id, answer)

    def submit(self, name, task_id, answer):
        if isinstance(answer, FLModel):
            with patch.object(DXO, "validate", return_value=""):  # a site need not
                result = FLModelUtils.to_shareable(answer)
            result.set_return_code(ReturnCode.OK)
        else:
            result = make_reply(answer)
        fl_ctx = self.new_context()
        fl_ctx.set_peer_context(FLContextManager(identity_name="whatever the site claims").new_context())
        fl_ctx.set_prop(FLContextKey.TASK_RESULT, result, private=True, sticky=False)
        fl_ctx.set_prop(FLContextKey.TASK_ID, task_id, private=True, sticky=False)
        self.communicator.process_submission(self.clients[name], "train", task_id, result, fl_ctx)

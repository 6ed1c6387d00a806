"""The job of an aggregator: its controller, the sites and time limit of a round, the folder of results."""

from __future__ import annotations

import threading
from typing import Any

from nvflare.apis.controller_spec import TaskCompletionStatus
from nvflare.apis.fl_constant import FLContextKey, ProcessType
from nvflare.apis.fl_context import FLContext


class RunningJob:
    """The running job, from which the sites, the sender and the folder are read, with two settings changed.

    A controller with default settings ends the job when a site answers with an error; it is set to ignore such
    results. And a round ends after `timeout` seconds, for which FedAvg has no setting.
    """

    def __init__(self, timeout: float | None) -> None:
        self.timeout = timeout
        self.controller: Any = None
        self.clock: threading.Timer | None = None

    def attach(self, aggregator: Any, fl_ctx: FLContext) -> bool:
        """Find the running controller that uses this aggregator; return whether there is one."""
        workflow = getattr(fl_ctx.get_prop(FLContextKey.RUNNER), "current_wf", None)
        controller = getattr(workflow, "controller", None)
        if getattr(controller, "aggregator", None) is not aggregator:
            return False
        self.controller = controller
        for name in ("_ignore_result_error", "ignore_result_error"):  # of FedAvg, of ScatterAndGather
            if getattr(controller, name, False) is None:
                setattr(controller, name, True)
        return True

    def targets(self) -> set[str]:
        """Return the sites that the standing tasks were sent to."""
        tasks = getattr(getattr(self.controller, "communicator", None), "_tasks", ())
        return {site for task in tasks for site in task.targets or ()}

    def sender(self, fl_ctx: FLContext) -> str | None:
        """Return the site whose task's result is being processed; None if that task is over."""
        communicator = getattr(self.controller, "communicator", None)
        if communicator is None:
            return None
        client_task = communicator.process_task_check(fl_ctx.get_prop(FLContextKey.TASK_ID), fl_ctx)
        return None if client_task is None else str(client_task.client.name)

    def tensors_on_disk(self) -> bool:
        return bool(getattr(self.controller, "enable_tensor_disk_offload", False))

    def start_clock(self) -> None:
        """End the round's tasks after the timeout, if one is set."""
        if self.timeout is not None:
            self.stop_clock()
            status = TaskCompletionStatus.TIMEOUT
            self.clock = threading.Timer(self.timeout, self.controller.cancel_all_tasks, (status,))
            self.clock.daemon = True
            self.clock.start()

    def stop_clock(self) -> None:
        if self.clock is not None:
            self.clock.cancel()
            self.clock = None

    @staticmethod
    def on_a_site(fl_ctx: FLContext) -> bool:
        """Return whether this process runs on a site, not on the server."""
        return fl_ctx.get_prop(FLContextKey.PROCESS_TYPE) in (ProcessType.CLIENT_JOB, ProcessType.CLIENT_PARENT)

    @staticmethod
    def result_folder(fl_ctx: FLContext | None) -> str | None:
        """Return the folder that NVFlare keeps the job's results in; None outside of a job."""
        if fl_ctx is None or fl_ctx.get_engine() is None:
            return None
        folder: str = fl_ctx.get_engine().get_workspace().get_result_root(fl_ctx.get_job_id())
        return folder

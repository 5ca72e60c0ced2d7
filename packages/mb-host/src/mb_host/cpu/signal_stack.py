"""A separate stack for signal handlers, without which a signal in a matrix product corrupts the heap."""

import faulthandler
import threading

_STDERR = 2


def use_signal_stack() -> bool:
    """Let signals of the main thread use a stack of their own. Processes that are forked later have it as well.

    The kernels of oneDNN for float32 products point the stack register of the processor to memory of the heap. A signal
    that arrives within one, such as SIGTERM, overwrites what is below it: the process crashes soon, or computes with
    changed data (uxlfoundation/oneDNN issue 4845; torch 2.11 has it, in LSTMs too). The kernel delivers signals of a
    process to its main thread, and Python's handlers use a stack of their own if the thread has one. `faulthandler`
    makes that stack; it also prints the Python stack of a process that crashes.

    Returns:
        Whether the main thread has that stack: False in another thread, which cannot set it.
    """
    if faulthandler.is_enabled():
        return True
    if threading.current_thread() is not threading.main_thread():
        return False
    faulthandler.enable(file=_STDERR)  # the descriptor: sys.stderr may be closed, or no file
    return True

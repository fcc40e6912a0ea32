# SPDX-License-Identifier: Apache-2.0
"""Symphony as the paper writes it: equations 1-5 and Algorithm 1, in floating point, readable before fast.

What the paper leaves open is decided as a switch pipeline has to decide it; ``pipeline`` and the P4 program
agree packet for packet (the marking probability within 5 %):

- Steps, PSNs and times wrap and are compared by serial arithmetic (RFC 1982).
- Statistics and the right to be marked use step_min as it was *before* the packet. So a step's last packet
  can count as outpacing but is never marked, nor is one that lowers step_min: line 11 comes out the same.
- Windows are lazy: the first packet at least one length after the window's start closes it, updates alpha
  and counts in the next window, which starts at its time.
- That packet also restarts psn_rec (3.4.2): with its own PSN if its step is step_min, with 0 if it is ahead.
  A packet ahead therefore stays unmarked then, until a packet of step_min has come.
- The PSN is relative to the first PSN of the flow's step, kept in a slot that flows may share by accident:
  then each takes the slot over. An older PSN than the first restarts the count (a lost first packet).
- The first packet's relative PSN, 0, counts as 1 in the ratio of eq. 1.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from switch_agent.dataplane.constants import AHEAD, EXPIRED, LAG, LAST, MARK, PSN_BITS, STEP_BITS, TRACKED
from switch_agent.dataplane.params import SymphonyParams

__all__ = ["FlowBases", "JobState", "Packet", "Verdict", "serial_diff"]

_STEPS = 1 << STEP_BITS
_TIME_BITS = 32


def serial_diff(a: int, b: int, bits: int) -> int:
    """Return a - b on a circle of 2^bits numbers: -2^(bits-1) .. 2^(bits-1) - 1 (RFC 1982).

    Exactly half the circle, undefined in RFC 1982, counts as behind.
    """
    half = 1 << (bits - 1)
    return ((a - b + half) & ((1 << bits) - 1)) - half


@dataclass(frozen=True, slots=True)
class Packet:
    """What the switch reads from one data packet.

    Attributes:
        step: step index modulo 2^10.
        psn: 24-bit packet sequence number.
        last: the packet ends its flow's step (``Is_RDMA_LastWrite``).
        flow: identity of the flow, without the step.
        slot: where the switch keeps the flow's first PSN.
        time: arrival in units of 256 ns, modulo 2^32 or not.
        coin: uniform random number, 0 <= coin < 1.
    """

    step: int
    psn: int
    last: bool
    flow: Hashable
    slot: int
    time: int
    coin: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one packet.

    Attributes:
        ahead: its step was ahead of step_min: outpacing.
        lag: it lowered step_min.
        expired: it opened a new window.
        last: it ended its flow's step.
        relative_psn: its position in its flow's step, from 0.
        probability: P_ECN of eq. 4; 0 for packets that line 11 exempts.
        mark: the coin said: mark (``to_mark_ecn``).
    """

    ahead: bool
    lag: bool
    expired: bool
    last: bool
    relative_psn: int
    probability: float
    mark: bool

    @property
    def bits(self) -> int:
        """The verdict as ``pipeline.process_packet`` returns it."""
        return (
            TRACKED | AHEAD * self.ahead | MARK * self.mark | LAG * self.lag | EXPIRED * self.expired | LAST * self.last
        )


class FlowBases:
    """First PSNs of the flows' steps, in slots. All jobs of one switch pipe share them."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[Hashable, int, int]] = {}

    def relative_psn(self, packet: Packet) -> int:
        """Return the packet's position in its flow's step; its slot now belongs to that flow and step."""
        flow, step, base = self._slots.get(packet.slot, (None, 0, 0))
        if (flow, step) != (packet.flow, packet.step) or serial_diff(packet.psn, base, PSN_BITS) < 0:
            base = packet.psn
            self._slots[packet.slot] = (packet.flow, packet.step, base)
        return serial_diff(packet.psn, base, PSN_BITS)


class JobState:
    """State block of one job at one switch (paper 3.2.1 and Algorithm 1).

    Attributes:
        params: the job's parameters; may be replaced while packets fly.
        step_min: smallest step among the active flows, as tracked (3.4.1).
        step_max: largest step seen, for the degree of step overlap; falls only when reset from outside.
        psn_rec: largest relative PSN of step_min in this window (3.4.2).
        alpha: adaptive aggressiveness (eq. 2).
        window_start: start of this window, 256 ns units modulo 2^32.
        cnt_total: packets of this window.
        cnt_op: outpacing packets of this window.
        flows: first PSNs of the flows' steps.
    """

    def __init__(self, params: SymphonyParams, first_step: int = 0, flows: FlowBases | None = None) -> None:
        self.params = params
        self.step_min = first_step % _STEPS
        self.step_max = self.step_min
        self.psn_rec = 0
        self.alpha = 1
        self.window_start = 0
        self.cnt_total = 0
        self.cnt_op = 0
        self.flows = FlowBases() if flows is None else flows

    def process(self, packet: Packet) -> Verdict:
        """Run Algorithm 1 on one packet."""
        psn = self.flows.relative_psn(packet)
        relation = serial_diff(packet.step, self.step_min, STEP_BITS)
        ahead = relation > 0
        expired = self._update_traffic_stats(packet.time, ahead)
        self._track(packet, relation, psn, expired)
        exempt = not ahead or packet.last or self.psn_rec <= self.params.n_warmup  # line 11
        probability = 0.0 if exempt else self._probability(psn)
        return Verdict(
            ahead=ahead,
            lag=relation < 0 and not packet.last,
            expired=expired,
            last=packet.last,
            relative_psn=psn,
            probability=probability,
            mark=packet.coin < probability,
        )

    def _update_traffic_stats(self, time: int, ahead: bool) -> bool:
        """Line 2: count the packet, after closing the window if it is over; return whether it was."""
        expired = serial_diff(time - self.params.window_units, self.window_start, _TIME_BITS) >= 0
        if expired:
            if self.cnt_total > self.params.n_sample:
                self._update_alpha()
            self.window_start = time % (1 << _TIME_BITS)
            self.cnt_total = self.cnt_op = 0
        self.cnt_total += 1
        self.cnt_op += ahead
        return expired

    def _update_alpha(self) -> None:
        """Eq. 2 and 3 by the test of eq. 5, and the bound on alpha."""
        if self.cnt_op >= self.params.tau * self.cnt_total:
            if self.alpha < self.params.alpha_max:
                self.alpha += 1
        else:
            self.alpha = max(1, self.alpha - 1)

    def _track(self, packet: Packet, relation: int, psn: int, expired: bool) -> None:
        """Lines 3 to 10, with the time-windowed maximum of 3.4.2."""
        if packet.last:
            self.step_min = (packet.step + 1) % _STEPS
            self.psn_rec = 0
        elif relation < 0:
            self.step_min, self.psn_rec = packet.step, psn
        elif relation == 0:
            self.psn_rec = psn if expired else max(self.psn_rec, psn)
        elif expired:
            self.psn_rec = 0
        if serial_diff(packet.step, self.step_max, STEP_BITS) > 0:
            self.step_max = packet.step

    def _probability(self, psn: int) -> float:
        """Eq. 1 and 4, and the floor of the ratio."""
        ratio = max(1, psn) / self.psn_rec
        if self.params.ratio_floor is not None:
            ratio = max(ratio, self.params.ratio_floor)
        return min(1.0, self.params.k * self.alpha * ratio)

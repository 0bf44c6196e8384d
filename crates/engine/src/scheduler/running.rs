//! The first half of a step: tokens for the requests that run, and preemption of others to make room for them.

use super::{ScheduledAs, ScheduledRequest, Scheduler, SchedulingPolicy, Slot};

struct RunningScan {
    /// Place of the request in turn.
    at: usize,
    /// Tokens that are left of the step.
    budget: usize,
}

impl Scheduler {
    /// Schedules running requests in the order of their admission; gives the tokens that are left of the step.
    pub(super) fn schedule_running(&mut self, threshold: usize) -> usize {
        let budget = self.config.max_num_batched_tokens.saturating_sub(self.tokens_in_steps);
        let mut scan = RunningScan { at: 0, budget };
        let draft_slots = self.draft_slots();
        self.is_prefill_scheduled = false;
        while scan.budget > draft_slots {
            let Some(&slot) = self.running.get(scan.at) else { break };
            let request = &self.requests[slot];
            let num_computed_tokens = request.num_computed_tokens;
            // One place is left for the token that is sampled.
            let most = self.config.max_model_len.saturating_sub(num_computed_tokens + 1);
            let with_drafts = request.sequence.num_tokens + request.drafts.waiting;
            let most = most.min(scan.budget - draft_slots);
            let num_tokens = (with_drafts - num_computed_tokens).min(threshold).min(most);
            if num_tokens == 0 || request.tokens_in_step > 0 {
                scan.at += 1;
                continue;
            }
            if !self.make_room(slot, num_computed_tokens + num_tokens, &mut scan) {
                break;
            }
            self.schedule_drafts(slot, num_computed_tokens + num_tokens);
            self.is_prefill_scheduled |= self.requests[slot].is_prefill_chunk;
            self.give_tokens(slot, num_computed_tokens, num_tokens, ScheduledAs::Running);
            scan.budget -= num_tokens + draft_slots;
            scan.at += 1;
        }
        scan.budget
    }

    /// Notes that the step computes so many tokens of a request, behind those that are computed.
    pub(super) fn give_tokens(
        &mut self,
        slot: Slot,
        num_computed_tokens: usize,
        num_tokens: usize,
        scheduled_as: ScheduledAs,
    ) {
        let request = &self.requests[slot];
        self.decisions.scheduled.push(ScheduledRequest {
            request_id: request.id,
            slot,
            num_tokens,
            num_computed_tokens,
            prefill_tokens: request.prefill_tokens(num_computed_tokens),
            scheduled_as,
        });
    }

    /// Allocates blocks for a running request, preempting others while there are too few; gives false when the request
    /// itself was preempted.
    fn make_room(&mut self, slot: Slot, num_tokens: usize, scan: &mut RunningScan) -> bool {
        let slots = self.num_slots(num_tokens);
        while !self.kv_cache_manager.allocate_slots(&mut self.requests[slot].sequence, num_tokens, slots) {
            let Some(victim) = self.pop_victim(scan) else { return false };
            let preempted = self.preempt(victim);
            self.decisions.preempted.push(preempted);
            if victim == slot {
                return false;
            }
        }
        true
    }

    /// Takes out of the running requests the one to be preempted: the last admitted, or the one with the lowest claim.
    /// What this step has given it is given back.
    fn pop_victim(&mut self, scan: &mut RunningScan) -> Option<Slot> {
        if self.config.policy == SchedulingPolicy::Fcfs {
            return self.running.pop();
        }
        let claim = |slot: &Slot| (self.requests[*slot].priority, self.requests[*slot].arrival);
        let (at, _) = self.running.iter().enumerate().max_by_key(|(_, slot)| claim(slot))?;
        let victim = self.running.remove(at);
        if at < scan.at {
            scan.at -= 1;
        }
        if let Some(at) = self.decisions.scheduled.iter().position(|scheduled| scheduled.slot == victim) {
            scan.budget += self.decisions.scheduled.remove(at).num_tokens + self.draft_slots();
        }
        Some(victim)
    }
}

//! The rules that a run's configuration must obey before it can run (`psyche.core.state.config_checks`).

use super::demand;
use super::model::is_model;
use crate::errors::Refusal;
use crate::limits::*;
use crate::state::{Config, Model, Progress};

const PERMILLE: u16 = 1_000;

/// Refuse a configuration that cannot run, and bytes that are none.
pub fn check_config(config: &Config, model: &Model) -> Result<(), Refusal> {
    demand(is_config(config) && has_end(config, model) && is_model(model))
}

/// Refuse a progress at which a run cannot begin: the record must still hold its numbers at the end.
pub fn check_progress(progress: &Progress, config: &Config) -> Result<(), Refusal> {
    let steps = config.total_steps.saturating_sub(progress.step);
    let samples = u64::from(steps) * u64::from(config.global_batch_size_end);
    let is_last = progress.epoch_start_data_index > MAX_DATA_INDEX.saturating_sub(samples);
    demand(progress._pad == [0; 2] && progress.step >= 1 && !is_last)
}

fn is_config(c: &Config) -> bool {
    let times = [c.warmup_time, c.cooldown_time, c.max_round_train_time, c.round_witness_time, c.epoch_time];
    times.iter().all(|&time| time <= MAX_TIME_S)
        && [c.overlap, c.convict, c.reveal_gate].iter().all(|&flag| flag <= 1)
        && is_positive(c)
        && fits(c)
}

fn is_positive(c: &Config) -> bool {
    c.cooldown_time > 0
        && c.max_round_train_time > 0
        && c.round_witness_time > 0
        && c.min_clients > 0
        && c.total_steps > 0
        && c.global_batch_size_start > 0
        && c.waiting_for_members_extra_time > 0
        && c.evict_after > 0
        && c.late_limit > 0
}

fn fits(c: &Config) -> bool {
    c.init_min_clients >= c.min_clients
        && usize::from(c.init_min_clients) <= MAX_CLIENTS
        && usize::from(c.witness_nodes) <= MAX_WITNESSES
        && c.global_batch_size_end >= c.global_batch_size_start
        && c.verification_percent <= MAX_VERIFICATION_PERCENT
        && c.canary_permille <= PERMILLE
}

/// Whether an epoch ends; rules that compare with `epoch_time` hold only where it is set.
fn has_end(c: &Config, model: &Model) -> bool {
    if c.epoch_time == 0 {
        return c.rounds_per_epoch > 0;
    }
    // cold start must be over before the epoch is
    let rounds = c.epoch_time.saturating_sub(c.warmup_time) / c.max_round_train_time.max(1);
    c.warmup_time < c.epoch_time
        && c.max_round_train_time < c.epoch_time
        && u64::from(model.cold_start_warmup_steps) <= rounds
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{build_config, build_model};

    fn accepts(change: impl FnOnce(&mut Config, &mut Model)) -> bool {
        let (mut config, mut model) = (build_config(), build_model());
        change(&mut config, &mut model);
        check_config(&config, &model).is_ok()
    }

    #[test]
    fn times_are_at_most_136_years() {
        assert!(accepts(|_, _| {}));
        for (time, holds) in [(MAX_TIME_S, true), (MAX_TIME_S + 1, false), (u64::MAX, false)] {
            assert_eq!(accepts(|c, _| c.warmup_time = time), holds);
            assert_eq!(accepts(|c, _| c.cooldown_time = time), holds);
            assert_eq!(accepts(|c, _| c.max_round_train_time = time), holds);
            assert_eq!(accepts(|c, _| c.round_witness_time = time), holds);
            assert_eq!(accepts(|c, _| (c.warmup_time, c.epoch_time) = (0, time)), holds);
        }
    }

    #[test]
    fn what_a_run_cannot_do_without_is_not_zero() {
        assert!(!accepts(|c, _| c.cooldown_time = 0) && !accepts(|c, _| c.max_round_train_time = 0));
        assert!(!accepts(|c, _| c.round_witness_time = 0) && !accepts(|c, _| c.min_clients = 0));
        assert!(!accepts(|c, _| c.total_steps = 0) && !accepts(|c, _| c.global_batch_size_start = 0));
        assert!(!accepts(|c, _| c.waiting_for_members_extra_time = 0) && !accepts(|c, _| c.evict_after = 0));
        assert!(!accepts(|c, _| c.late_limit = 0) && !accepts(|_, m| m.max_seq_len = 0));
        assert!(accepts(|c, _| c.warmup_time = 0) && accepts(|c, _| c.straggler_percent = 0));
    }

    #[test]
    fn numbers_of_members_fit_the_record_and_each_other() {
        assert!(accepts(|c, _| c.init_min_clients = 256) && !accepts(|c, _| c.init_min_clients = 257));
        assert!(accepts(|c, _| (c.init_min_clients, c.min_clients) = (7, 7)));
        assert!(!accepts(|c, _| (c.init_min_clients, c.min_clients) = (7, 8)));
        assert!(accepts(|c, _| c.witness_nodes = 32) && !accepts(|c, _| c.witness_nodes = 33));
        assert!(accepts(|c, _| c.verification_percent = 99) && !accepts(|c, _| c.verification_percent = 100));
        assert!(accepts(|c, _| c.canary_permille = 1_000) && !accepts(|c, _| c.canary_permille = 1_001));
        assert!(accepts(|c, _| (c.global_batch_size_start, c.global_batch_size_end) = (9, 9)));
        assert!(!accepts(|c, _| (c.global_batch_size_start, c.global_batch_size_end) = (9, 8)));
    }

    #[test]
    fn switches_are_0_or_1() {
        assert!(accepts(|c, _| (c.overlap, c.reveal_gate) = (1, 1)));
        assert!(!accepts(|c, _| c.overlap = 2) && !accepts(|c, _| c.reveal_gate = 2));
    }

    #[test]
    fn an_epoch_ends_and_holds_a_cold_start() {
        assert!(!accepts(|c, _| c.rounds_per_epoch = 0));
        let timed = |epoch_time, warmup_time, max_round_train_time, steps| {
            accepts(|c, m| {
                (c.rounds_per_epoch, c.epoch_time, c.warmup_time) = (0, epoch_time, warmup_time);
                (c.max_round_train_time, m.cold_start_warmup_steps) = (max_round_train_time, steps);
            })
        };
        assert!(timed(100, 99, 1, 1) && !timed(100, 100, 1, 0) && !timed(100, 101, 1, 0));
        assert!(timed(100, 0, 99, 1) && !timed(100, 0, 100, 0));
        assert!(timed(100, 10, 9, 10) && !timed(100, 10, 9, 11) && timed(100, 11, 9, 9));
        assert!(accepts(|_, m| m.cold_start_warmup_steps = u32::MAX), "without epoch_time it may take any time");
    }

    #[test]
    fn a_run_ends_before_the_record_does() {
        let config = Config { total_steps: 11, global_batch_size_end: 10, ..build_config() };
        let accepts = |step, epoch_start_data_index, pad| {
            let progress = Progress { step, epoch_start_data_index, _pad: [0, pad], ..Progress::ZERO };
            check_progress(&progress, &config).is_ok()
        };
        assert!(accepts(1, MAX_DATA_INDEX - 100, 0) && !accepts(1, MAX_DATA_INDEX - 99, 0));
        assert!(accepts(12, MAX_DATA_INDEX, 0) && !accepts(12, MAX_DATA_INDEX + 1, 0));
        assert!(!accepts(0, 0, 0) && accepts(1, 0, 0) && !accepts(1, 0, 1));
    }
}

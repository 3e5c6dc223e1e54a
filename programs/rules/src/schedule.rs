//! The batch size as a function of the tokens trained.

use crate::state::Config;

/// The number of samples of a round after `tokens_done` tokens, in integer arithmetic, halves rounded up (T9).
pub fn compute_batch_size(config: &Config, tokens_done: u128) -> u16 {
    let (start, end) = (config.global_batch_size_start, config.global_batch_size_end);
    let span = config.global_batch_size_warmup_tokens;
    if tokens_done >= u128::from(span) {
        return end;
    }
    // the ramp as a sum of what is left of `start` and what there is of `end`, so that no term is negative
    let (done, span) = (tokens_done, u128::from(span));
    let doubled = 2 * (u128::from(start) * (span - done) + u128::from(end) * done) + span;
    divide(doubled, 2 * span) as u16 // between start and end
}

/// Integer division. One of 128 bits takes thousands of steps on SBF, and no usual ramp needs it.
fn divide(dividend: u128, divisor: u128) -> u128 {
    match (u64::try_from(dividend), u64::try_from(divisor)) {
        (Ok(dividend), Ok(divisor)) => u128::from(dividend / divisor),
        _ => dividend / divisor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{build_state, Random};

    fn compute(start: u16, end: u16, span: u64, tokens: u128) -> u16 {
        let mut state = build_state();
        let config = &mut state.config;
        config.global_batch_size_start = start;
        config.global_batch_size_end = end;
        config.global_batch_size_warmup_tokens = span;
        compute_batch_size(config, tokens)
    }

    #[test]
    fn the_ramp_is_linear_and_halves_are_rounded_up() {
        assert_eq!(compute(4, 12, 0, 0), 12);
        assert_eq!(compute(4, 12, 100, 0), 4);
        assert_eq!(compute(4, 12, 100, 6), 4);
        assert_eq!(compute(4, 12, 16, 1), 5);
        assert_eq!(compute(4, 12, 100, 99), 12);
        assert_eq!(compute(4, 12, 100, 100), 12);
        assert_eq!(compute(12, 4, 16, 1), 12);
    }

    #[test]
    fn short_and_long_divisions_agree() {
        let mut random = Random::new("divide");
        for _ in 0..1_000 {
            let shift = random.between(0, 110);
            let dividend = (u128::from(random.word()) << 64 | u128::from(random.word())) >> shift;
            let divisor = u128::from(random.word() >> random.between(0, 62)) * 2 + 2;
            assert_eq!(divide(dividend, divisor), dividend / divisor);
        }
    }

    #[test]
    fn the_largest_numbers_fit() {
        assert_eq!(compute(u16::MAX, u16::MAX, u64::MAX, u64::MAX as u128 - 1), u16::MAX);
        assert_eq!(compute(0, u16::MAX, u64::MAX, u64::MAX as u128 / 2), 32_767);
        assert_eq!(compute(1, 2, u64::MAX, u128::MAX), 2);
    }
}

//! Learning-rate schedules and optimizers. Rates are float64 on record, but must be finite as float32.

use super::fields::Fields;
use super::floats::{get_natural_f32, get_natural_f64, ONE_F32, SIXTEEN_F32};
use crate::limits::{MAX_CHUNK_EDGE, MAX_INNER_STEPS};

const LAST_INNER_OPTIMIZER: u8 = 3; // Muon, anew in each round
const LAST_LOOKAHEAD: u8 = 1; // along the own result

/// Whether these bytes are a schedule that a run can follow.
pub fn is_schedule(bytes: &[u8]) -> bool {
    read_schedule(bytes).is_some()
}

fn read_schedule(bytes: &[u8]) -> Option<()> {
    let mut fields = Fields::new(bytes);
    let kind = fields.u32()?;
    fields.pad(4)?;
    let base_lr = read_rate(&mut fields)?;
    let _warmup_init_lr = read_rate(&mut fields)?;
    match kind {
        0 => {
            let _warmup_steps = fields.u32()?; // Constant
        }
        1 | 2 => read_decay(&mut fields)?,
        3 => read_stable_decay(&mut fields, base_lr)?,
        _ => return None,
    }
    fields.end()
}

fn read_rate(fields: &mut Fields) -> Option<u64> {
    get_natural_f64(fields.u64()?)
}

/// Linear or Cosine.
fn read_decay(fields: &mut Fields) -> Option<()> {
    let _final_lr = read_rate(fields)?;
    let (warmup_steps, total_steps) = (fields.u32()?, fields.u32()?);
    (total_steps >= warmup_steps).then_some(())
}

/// WarmupStableDecay: its rates must fall, its numbers of steps may be any.
fn read_stable_decay(fields: &mut Fields, base_lr: u64) -> Option<()> {
    let (cosine_decay_final_lr, linear_decay_final_lr) = (read_rate(fields)?, read_rate(fields)?);
    let _steps = fields.bytes(4 * size_of::<u32>())?;
    (linear_decay_final_lr <= cosine_decay_final_lr && cosine_decay_final_lr <= base_lr).then_some(())
}

/// Whether these bytes are an optimizer with which a run can train.
pub fn is_optimizer(bytes: &[u8]) -> bool {
    read_optimizer(bytes).is_some()
}

fn read_optimizer(bytes: &[u8]) -> Option<()> {
    let mut fields = Fields::new(bytes);
    match fields.u32()? {
        0 => {} // Dummy
        1 => read_adamw(&mut fields)?,
        2 => read_distro(&mut fields)?,
        3 => read_local_steps(&mut fields)?,
        _ => return None,
    }
    fields.end()
}

fn read_adamw(fields: &mut Fields) -> Option<()> {
    let betas = [get_natural_f32(fields.u32()?)?, get_natural_f32(fields.u32()?)?];
    let eps = get_natural_f32(fields.u32()?)?;
    let (has_weight_decay, has_clip_grad_norm) = (fields.boolean()?, fields.boolean()?);
    fields.pad(2)?;
    read_weight_decay(fields, has_weight_decay)?;
    read_clip_grad_norm(fields, has_clip_grad_norm)?;
    (betas[0] < ONE_F32 && betas[1] < ONE_F32 && eps > 0).then_some(())
}

fn read_distro(fields: &mut Fields) -> Option<()> {
    let (has_clip_grad_norm, has_weight_decay) = (fields.boolean()?, fields.boolean()?);
    let (_quantize_1bit, lookahead) = (fields.boolean()?, fields.u8()?);
    read_clip_grad_norm(fields, has_clip_grad_norm)?;
    read_weight_decay(fields, has_weight_decay)?;
    let compression_decay = get_natural_f32(fields.u32()?)?;
    let (compression_topk, compression_chunk) = (fields.u16()?, fields.u16()?);
    let has_lookahead = lookahead <= LAST_LOOKAHEAD;
    (has_lookahead && is_compression(compression_topk, compression_chunk) && compression_decay <= ONE_F32).then_some(())
}

fn is_compression(topk: u16, chunk: u16) -> bool {
    topk > 0 && (1..=MAX_CHUNK_EDGE).contains(&chunk)
}

fn read_local_steps(fields: &mut Fields) -> Option<()> {
    let (has_clip_grad_norm, has_weight_decay) = (fields.boolean()?, fields.boolean()?);
    let (inner_optimizer, value_bits) = (fields.u8()?, fields.u8()?);
    read_clip_grad_norm(fields, has_clip_grad_norm)?;
    read_weight_decay(fields, has_weight_decay)?;
    let (error_decay, outer_rate) = (get_natural_f32(fields.u32()?)?, get_natural_f32(fields.u32()?)?);
    let inner_steps = fields.u16()?;
    let (compression_topk, compression_chunk) = (fields.u16()?, fields.u16()?);
    let merge_step = fields.u16()?;
    let has_kinds = inner_optimizer <= LAST_INNER_OPTIMIZER && (1..=2).contains(&value_bits);
    let has_rates = error_decay <= ONE_F32 && (1..=SIXTEEN_F32).contains(&outer_rate);
    let has_steps = (1..=MAX_INNER_STEPS).contains(&inner_steps) && merge_step < inner_steps;
    (has_kinds && has_rates && has_steps && is_compression(compression_topk, compression_chunk)).then_some(())
}

fn read_weight_decay(fields: &mut Fields, is_present: bool) -> Option<()> {
    match fields.optional_f32(is_present)? {
        Some(bits) => get_natural_f32(bits).map(|_| ()),
        None => Some(()),
    }
}

/// A norm of 0 would remove every gradient.
fn read_clip_grad_norm(fields: &mut Fields, is_present: bool) -> Option<()> {
    match fields.optional_f32(is_present)? {
        Some(bits) => get_natural_f32(bits).filter(|&bits| bits > 0).map(|_| ()),
        None => Some(()),
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use super::*;

    fn build_schedule(kind: u32, rates: &[f64], steps: &[u32]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        bytes.extend(rates.iter().flat_map(|rate| rate.to_le_bytes()));
        bytes.extend(steps.iter().flat_map(|count| count.to_le_bytes()));
        bytes.resize(56, 0);
        bytes
    }

    #[test]
    fn rates_are_finite_as_float32() {
        for (rate, holds) in [(0.0, true), (-0.0, true), (3.4e38, true), (3.5e38, false), (-1e-9, false)] {
            assert_eq!(is_schedule(&build_schedule(0, &[rate, 0.0], &[1])), holds, "{rate}");
            assert_eq!(is_schedule(&build_schedule(2, &[1.0, 0.0, rate], &[1, 2])), holds, "{rate}");
        }
        assert!(!is_schedule(&build_schedule(4, &[0.0, 0.0], &[1])));
    }

    #[test]
    fn a_decay_ends_after_its_warm_up() {
        for kind in [1, 2] {
            assert!(is_schedule(&build_schedule(kind, &[1.0, 0.0, 0.5], &[5, 5])));
            assert!(!is_schedule(&build_schedule(kind, &[1.0, 0.0, 0.5], &[5, 4])));
        }
    }

    #[test]
    fn rates_of_a_stable_decay_fall() {
        let accepts =
            |base, cosine, linear| is_schedule(&build_schedule(3, &[base, 9.0, cosine, linear], &[1, 2, 3, 4]));
        assert!(accepts(3.0, 2.0, 1.0) && accepts(1.0, 1.0, 1.0) && accepts(0.0, -0.0, 0.0));
        assert!(!accepts(3.0, 1.0, 2.0) && !accepts(2.0, 3.0, 1.0));
    }

    #[test]
    fn nothing_follows_a_schedule() {
        for (kind, last) in [(0, 28), (1, 40), (2, 40)] {
            let mut bytes = build_schedule(kind, &[], &[]);
            assert!(is_schedule(&bytes));
            bytes[last] = 1;
            assert!(!is_schedule(&bytes));
        }
    }

    fn build_adamw(betas: [f32; 2], eps: f32, weight_decay: Option<f32>, clip_grad_norm: Option<f32>) -> Vec<u8> {
        let mut bytes = std::vec![1, 0, 0, 0];
        bytes.extend([betas[0], betas[1], eps].iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend([weight_decay.is_some().into(), clip_grad_norm.is_some().into(), 0, 0]);
        let values = [weight_decay, clip_grad_norm].map(Option::unwrap_or_default);
        bytes.extend(values.iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend([0; 4]);
        bytes
    }

    #[test]
    fn settings_of_adamw_have_their_ranges() {
        let accepts = |a, b, eps, decay, clip| is_optimizer(&build_adamw([a, b], eps, decay, clip));
        assert!(accepts(0.9, 0.999, 1e-8, None, None) && accepts(0.0, -0.0, 1e-45, Some(-0.0), Some(1e-45)));
        assert!(!accepts(1.0, 0.9, 1e-8, None, None) && !accepts(0.9, -0.1, 1e-8, None, None));
        assert!(!accepts(0.9, 0.9, 0.0, None, None) && !accepts(0.9, 0.9, f32::INFINITY, None, None));
        assert!(!accepts(0.9, 0.9, 1.0, Some(-1.0), None) && !accepts(0.9, 0.9, 1.0, Some(f32::NAN), None));
        assert!(!accepts(0.9, 0.9, 1.0, None, Some(0.0)) && !accepts(0.9, 0.9, 1.0, None, Some(-0.0)));
        let mut marked = build_adamw([0.9; 2], 1.0, None, None);
        marked[18] = 1; // a pad
        assert!(!is_optimizer(&marked));
    }

    fn build_distro(decay: f32, topk: u16, chunk: u16) -> Vec<u8> {
        let mut bytes = std::vec![2, 0, 0, 0, 0, 0, 1, 0];
        bytes.extend([0; 8]);
        bytes.extend(decay.to_le_bytes());
        bytes.extend([topk, chunk].iter().flat_map(|number| number.to_le_bytes()));
        bytes.resize(32, 0);
        bytes
    }

    #[test]
    fn settings_of_distro_have_their_ranges() {
        let accepts = |decay, topk, chunk| is_optimizer(&build_distro(decay, topk, chunk));
        assert!(accepts(0.999, 8, 64) && accepts(1.0, u16::MAX, 128) && accepts(-0.0, 1, 1));
        assert!(!accepts(1.001, 8, 64) && !accepts(f32::NAN, 8, 64) && !accepts(-0.5, 8, 64));
        assert!(!accepts(0.5, 0, 64) && !accepts(0.5, 8, 0) && !accepts(0.5, 8, 129));
        for (byte, value) in [(4, 2), (5, 2), (6, 2), (7, 2), (8, 1), (12, 1), (24, 1)] {
            let mut bytes = build_distro(0.5, 1, 1);
            bytes[byte] = value;
            assert!(!is_optimizer(&bytes), "byte {byte}");
        }
    }

    fn build_local_steps(rates: [f32; 2], counts: [u16; 4]) -> Vec<u8> {
        let mut bytes = std::vec![3, 0, 0, 0, 0, 0, 1, 2];
        bytes.extend([0; 8]);
        bytes.extend(rates.iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(counts.iter().flat_map(|number| number.to_le_bytes()));
        bytes
    }

    #[test]
    fn settings_of_local_steps_have_their_ranges() {
        let accepts = |rates, counts| is_optimizer(&build_local_steps(rates, counts));
        assert!(accepts([0.95, 1.0], [8, 64, 64, 2]) && accepts([1.0, 16.0], [2_048, u16::MAX, 128, 2_047]));
        assert!(accepts([-0.0, 1e-45], [1, 1, 1, 0]));
        for rates in [[1.001, 1.0], [f32::NAN, 1.0], [0.5, 0.0], [0.5, -0.0], [0.5, 16.1], [0.5, f32::INFINITY]] {
            assert!(!accepts(rates, [8, 64, 64, 2]), "{rates:?}");
        }
        for counts in [[0, 1, 1, 0], [2_049, 1, 1, 0], [8, 0, 1, 0], [8, 1, 0, 0], [8, 1, 129, 0], [8, 1, 1, 8]] {
            assert!(!accepts([0.5, 1.0], counts), "{counts:?}");
        }
        for (byte, value) in [(4, 2), (5, 2), (6, 4), (7, 0), (7, 3), (8, 1), (12, 1)] {
            let mut bytes = build_local_steps([0.5, 1.0], [8, 64, 64, 2]);
            bytes[byte] = value;
            assert!(!is_optimizer(&bytes), "byte {byte}");
        }
    }

    #[test]
    fn a_dummy_optimizer_has_no_settings() {
        let mut bytes = [0; 32];
        assert!(is_optimizer(&bytes));
        bytes[4] = 1;
        assert!(!is_optimizer(&bytes));
    }
}

//! The model with everything that depends on a kind.

use super::data::is_location;
use super::schedule::{is_optimizer, is_schedule};
use super::sources::read_source;
use crate::limits::MAX_COOLDOWN_SOURCES;
use crate::state::Model;

const LLM: u32 = 0;
const LAST_ARCHITECTURE: u32 = 3; // Torchtitan
const LAST_DATA_TYPE: u32 = 1; // Finetuning

/// Whether a run can train this model.
pub fn is_model(model: &Model) -> bool {
    has_known_kinds(model)
        && model.max_seq_len > 0
        && model.cooldown_sources <= MAX_COOLDOWN_SOURCES
        && read_source(&model.checkpoint).is_some_and(|source| source.is_lasting())
        && model.extra_checkpoints.iter().all(|bytes| read_source(bytes).is_some())
        && is_location(&model.data_location)
        && is_schedule(&model.lr_schedule)
        && is_optimizer(&model.optimizer)
}

fn has_known_kinds(model: &Model) -> bool {
    model.kind == LLM
        && model._pad == [0; 3]
        && model.architecture <= LAST_ARCHITECTURE
        && model.data_type <= LAST_DATA_TYPE
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::build_model;

    fn accepts(change: impl FnOnce(&mut Model)) -> bool {
        let mut model = build_model();
        change(&mut model);
        is_model(&model)
    }

    #[test]
    fn kinds_are_known_and_pads_are_zero() {
        assert!(accepts(|m| m.architecture = 3) && !accepts(|m| m.architecture = 4));
        assert!(accepts(|m| m.data_type = 1) && !accepts(|m| m.data_type = 2));
        assert!(!accepts(|m| m.kind = 1) && !accepts(|m| m._pad[2] = 1));
        assert!(accepts(|m| m.cooldown_sources = 4) && !accepts(|m| m.cooldown_sources = 5));
    }

    #[test]
    fn every_part_is_checked() {
        assert!(!accepts(|m| m.checkpoint[0] = 0) && !accepts(|m| m.checkpoint[0] = 7));
        assert!(!accepts(|m| m.data_location[0] = 9) && !accepts(|m| m.lr_schedule[0] = 9));
        assert!(!accepts(|m| m.optimizer[0] = 9));
        for spare in 0..3 {
            assert!(accepts(|m| m.extra_checkpoints[spare][0] = 3), "a spare source may be a peer");
            assert!(!accepts(|m| m.extra_checkpoints[spare][0] = 7));
        }
    }
}

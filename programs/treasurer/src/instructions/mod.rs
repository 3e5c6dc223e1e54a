//! The accounts of each instruction, with their checks, and what it does.

pub mod participant_claim;
pub mod participant_close;
pub mod participant_create;
pub mod run_close;
pub mod run_create;
pub mod run_update;
pub mod run_withdraw;

pub use participant_claim::*;
pub use participant_close::*;
pub use participant_create::*;
pub use run_close::*;
pub use run_create::*;
pub use run_update::*;
pub use run_withdraw::*;

//! The accounts of each instruction, with their checks, and what it does.

pub mod close_earned_points;
pub mod collect;
pub mod free_coordinator;
pub mod init_coordinator;
pub mod join_run;
pub mod owner;
pub mod report_equivocation;
pub mod tick;
pub mod user;

pub use close_earned_points::*;
pub use collect::*;
pub use free_coordinator::*;
pub use init_coordinator::*;
pub use join_run::*;
pub use owner::*;
pub use report_equivocation::*;
pub use user::*;

; Helpers in IR for operations that the BPF back end has no lowering for. Appended to every program; the optimizer
; drops what it does not use. Named after what they do: umulh is the high word of a product, umulo64 and smulo64
; multiply and tell overflow, udivrem128 divides bit by bit (from [n, d] at %in to [quotient, remainder] at %out).

declare void @sol_memcpy_(ptr, ptr, i64)
declare void @sol_memmove_(ptr, ptr, i64)
declare void @sol_memset_(ptr, i8, i64)
declare void @sol_memcmp_(ptr, ptr, i64, ptr)
define internal i32 @__sbf_memcmp(ptr %a, ptr %b, i64 %n) {
  %r = alloca i32, align 4
  store i32 0, ptr %r, align 4
  call void @sol_memcmp_(ptr %a, ptr %b, i64 %n, ptr %r)
  %v = load i32, ptr %r, align 4
  ret i32 %v
}

define internal i64 @__sbf_umulh(i64 %a, i64 %b) noinline {
  %al = and i64 %a, 4294967295
  %ah = lshr i64 %a, 32
  %bl = and i64 %b, 4294967295
  %bh = lshr i64 %b, 32
  %ll = mul i64 %al, %bl
  %lh = mul i64 %al, %bh
  %hl = mul i64 %ah, %bl
  %hh = mul i64 %ah, %bh
  %c = lshr i64 %ll, 32
  %t = add i64 %hl, %c
  %tl = and i64 %t, 4294967295
  %th = lshr i64 %t, 32
  %u = add i64 %lh, %tl
  %uh = lshr i64 %u, 32
  %v = add i64 %hh, %th
  %r = add i64 %v, %uh
  ret i64 %r
}

define internal i128 @__sbf_mul128(i128 %a, i128 %b) alwaysinline {
  %al = trunc i128 %a to i64
  %as = lshr i128 %a, 64
  %ah = trunc i128 %as to i64
  %bl = trunc i128 %b to i64
  %bs = lshr i128 %b, 64
  %bh = trunc i128 %bs to i64
  %lo = mul i64 %al, %bl
  %h0 = call i64 @__sbf_umulh(i64 %al, i64 %bl)
  %h1 = mul i64 %al, %bh
  %h2 = mul i64 %ah, %bl
  %h3 = add i64 %h0, %h1
  %hi = add i64 %h3, %h2
  %lx = zext i64 %lo to i128
  %hx = zext i64 %hi to i128
  %hy = shl i128 %hx, 64
  %r = or i128 %hy, %lx
  ret i128 %r
}

define internal { i64, i1 } @__sbf_umulo64(i64 %a, i64 %b) alwaysinline {
  %lo = mul i64 %a, %b
  %hi = call i64 @__sbf_umulh(i64 %a, i64 %b)
  %o = icmp ne i64 %hi, 0
  %r0 = insertvalue { i64, i1 } poison, i64 %lo, 0
  %r1 = insertvalue { i64, i1 } %r0, i1 %o, 1
  ret { i64, i1 } %r1
}

define internal { i64, i1 } @__sbf_smulo64(i64 %a, i64 %b) alwaysinline {
  %lo = mul i64 %a, %b
  %uh = call i64 @__sbf_umulh(i64 %a, i64 %b)
  %sa = ashr i64 %a, 63
  %sb = ashr i64 %b, 63
  %ca = and i64 %sa, %b
  %cb = and i64 %sb, %a
  %h1 = sub i64 %uh, %ca
  %hi = sub i64 %h1, %cb
  %ls = ashr i64 %lo, 63
  %o = icmp ne i64 %hi, %ls
  %r0 = insertvalue { i64, i1 } poison, i64 %lo, 0
  %r1 = insertvalue { i64, i1 } %r0, i1 %o, 1
  ret { i64, i1 } %r1
}

define internal i64 @__sbf_sdiv64(i64 %a, i64 %b) noinline {
  %sa = ashr i64 %a, 63
  %xa = xor i64 %a, %sa
  %ua = sub i64 %xa, %sa
  %sb = ashr i64 %b, 63
  %xb = xor i64 %b, %sb
  %ub = sub i64 %xb, %sb
  %q = udiv i64 %ua, %ub
  %s = xor i64 %sa, %sb
  %xq = xor i64 %q, %s
  %r = sub i64 %xq, %s
  ret i64 %r
}

define internal i64 @__sbf_srem64(i64 %a, i64 %b) noinline {
  %q = call i64 @__sbf_sdiv64(i64 %a, i64 %b)
  %m = mul i64 %q, %b
  %r = sub i64 %a, %m
  ret i64 %r
}

define internal void @__sbf_udivrem128(ptr %out, ptr %in) noinline {
entry:
  %n = load i128, ptr %in, align 8
  %pd = getelementptr i8, ptr %in, i64 16
  %d = load i128, ptr %pd, align 8
  br label %loop
loop:
  %i = phi i64 [ 128, %entry ], [ %i1, %loop ]
  %q = phi i128 [ %n, %entry ], [ %q2, %loop ]
  %r = phi i128 [ 0, %entry ], [ %r3, %loop ]
  %top = lshr i128 %q, 127
  %r1 = shl i128 %r, 1
  %carry = lshr i128 %r, 127
  %r2 = or i128 %r1, %top
  %ge0 = icmp uge i128 %r2, %d
  %cz = icmp ne i128 %carry, 0
  %ge = or i1 %ge0, %cz
  %sub = sub i128 %r2, %d
  %r3 = select i1 %ge, i128 %sub, i128 %r2
  %bit = zext i1 %ge to i128
  %q1 = shl i128 %q, 1
  %q2 = or i128 %q1, %bit
  %i1 = add i64 %i, -1
  %done = icmp eq i64 %i1, 0
  br i1 %done, label %end, label %loop
end:
  store i128 %q2, ptr %out, align 8
  %pr = getelementptr i8, ptr %out, i64 16
  store i128 %r3, ptr %pr, align 8
  ret void
}

define internal i128 @__sbf_udiv128(i128 %a, i128 %b) alwaysinline {
  %in = alloca [2 x i128], align 8
  %out = alloca [2 x i128], align 8
  store i128 %a, ptr %in, align 8
  %p = getelementptr i8, ptr %in, i64 16
  store i128 %b, ptr %p, align 8
  call void @__sbf_udivrem128(ptr %out, ptr %in)
  %o = getelementptr i8, ptr %out, i64 0
  %r = load i128, ptr %o, align 8
  ret i128 %r
}

define internal i128 @__sbf_urem128(i128 %a, i128 %b) alwaysinline {
  %in = alloca [2 x i128], align 8
  %out = alloca [2 x i128], align 8
  store i128 %a, ptr %in, align 8
  %p = getelementptr i8, ptr %in, i64 16
  store i128 %b, ptr %p, align 8
  call void @__sbf_udivrem128(ptr %out, ptr %in)
  %o = getelementptr i8, ptr %out, i64 16
  %r = load i128, ptr %o, align 8
  ret i128 %r
}

define internal i128 @__sbf_shl128(i128 %a, i128 %n) alwaysinline {
  %k = trunc i128 %n to i64
  %lo = trunc i128 %a to i64
  %as = lshr i128 %a, 64
  %hi = trunc i128 %as to i64
  %big = icmp uge i64 %k, 64
  %k6 = and i64 %k, 63
  %inv = xor i64 %k6, 63
  %l1 = shl i64 %lo, %k6
  %l2 = lshr i64 %lo, 1
  %l3 = lshr i64 %l2, %inv
  %h1 = shl i64 %hi, %k6
  %h2 = or i64 %h1, %l3
  %rl = select i1 %big, i64 0, i64 %l1
  %rh = select i1 %big, i64 %l1, i64 %h2
  %lx = zext i64 %rl to i128
  %hx = zext i64 %rh to i128
  %hy = shl i128 %hx, 64
  %r = or i128 %hy, %lx
  ret i128 %r
}

define internal i128 @__sbf_lshr128(i128 %a, i128 %n) alwaysinline {
  %k = trunc i128 %n to i64
  %lo = trunc i128 %a to i64
  %as = lshr i128 %a, 64
  %hi = trunc i128 %as to i64
  %big = icmp uge i64 %k, 64
  %k6 = and i64 %k, 63
  %inv = xor i64 %k6, 63
  %h1 = lshr i64 %hi, %k6
  %h2 = shl i64 %hi, 1
  %h3 = shl i64 %h2, %inv
  %l1 = lshr i64 %lo, %k6
  %l2 = or i64 %l1, %h3
  %fill = add i64 0, 0
  %rl = select i1 %big, i64 %h1, i64 %l2
  %rh = select i1 %big, i64 %fill, i64 %h1
  %lx = zext i64 %rl to i128
  %hx = zext i64 %rh to i128
  %hy = shl i128 %hx, 64
  %r = or i128 %hy, %lx
  ret i128 %r
}

define internal i128 @__sbf_ashr128(i128 %a, i128 %n) alwaysinline {
  %k = trunc i128 %n to i64
  %lo = trunc i128 %a to i64
  %as = lshr i128 %a, 64
  %hi = trunc i128 %as to i64
  %big = icmp uge i64 %k, 64
  %k6 = and i64 %k, 63
  %inv = xor i64 %k6, 63
  %h1 = ashr i64 %hi, %k6
  %h2 = shl i64 %hi, 1
  %h3 = shl i64 %h2, %inv
  %l1 = lshr i64 %lo, %k6
  %l2 = or i64 %l1, %h3
  %fill = ashr i64 %hi, 63
  %rl = select i1 %big, i64 %h1, i64 %l2
  %rh = select i1 %big, i64 %fill, i64 %h1
  %lx = zext i64 %rl to i128
  %hx = zext i64 %rh to i128
  %hy = shl i128 %hx, 64
  %r = or i128 %hy, %lx
  ret i128 %r
}

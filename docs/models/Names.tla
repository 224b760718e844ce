------------------------------- MODULE Names -------------------------------
(* A namespace that is deleted and made again, and the tables that come into it *)
(* meanwhile: by a create, by a rename from another namespace, by a transaction *)
(* with a staged table. docs/protocol.md says it in words. Locks are not here:  *)
(* they decide nothing.                                                         *)
(*                                                                              *)
(* The namespace has shards 1 and 2, with one name each. Shard 0 is in another  *)
(* namespace, which stays; table "t" is there at first.                         *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    None,        \* a model value
    Creators,    \* each makes the table that is called as itself
    Bearers,     \* the same in a transaction: with intents and a record
    Renamers,    \* move "t" into the namespace
    Deleters, Makers,  \* of the namespace
    Helpers, Fscks,
    Doubts,      \* how many answers are lost: 0 or 1 (TLC cannot compare requests for different objects)
    Rounds,      \* how often a create or delete begins again
    Mistake      \* "none", or what is done wrong

Shards == {0, 1, 2}
Txs == Bearers \cup Renamers
Tables == {"t"} \cup Creators \cup Bearers
Processes == Creators \cup Txs \cup Deleters \cup Makers \cup Helpers \cup Fscks
Table(x) == IF x \in Renamers THEN "t" ELSE x

VARIABLES reg, sh, ptr, rec, flight, doubts, pc, loc, said
vars == <<reg, sh, ptr, rec, flight, doubts, pc, loc, said>>

Free == [now |-> None, next |-> None, tx |-> None]
Naming(k) == [Free EXCEPT !.now = k]
Nobody == [s |-> 1, epoch |-> 0, reg |-> None, w |-> None, v |-> None, fine |-> TRUE, round |-> 0,
           tx |-> None, at |-> 1, yes |-> FALSE, tag |-> None, met |-> None]

Init ==
    /\ reg = [ver |-> 1, counter |-> 1, epoch |-> 1, recent |-> {}]   \* epoch 0: there is no such namespace
    /\ sh = [s \in Shards |-> [ver |-> 1, parent |-> 1, closed |-> FALSE, recent |-> {},
                               entry |-> IF s = 0 THEN Naming("t") ELSE Free]]
    /\ ptr = [k \in Tables |-> [ver |-> 1, here |-> k = "t", name |-> IF k = "t" THEN 0 ELSE None,
                                tx |-> None, next |-> None, recent |-> {}]]
    /\ rec = [x \in Txs |-> None]
    /\ flight = {}
    /\ doubts = Doubts
    /\ pc = [p \in Processes |-> IF p \in Helpers THEN "idle" ELSE "start"]
    /\ loc = [p \in Processes |-> Nobody]
    /\ said = [p \in Processes |-> None]

Committed(x) == x # None /\ rec[x] = "committed"
Stands(s) == IF Committed(sh[s].entry.tx) THEN sh[s].entry.next ELSE sh[s].entry.now
Name(k) == IF Committed(ptr[k].tx) THEN ptr[k].next ELSE ptr[k].name
Visible(k, s) == Stands(s) = k /\ ptr[k].here /\ Name(k) = s

-----------------------------------------------------------------------------
(* The store. A tag is a version here; it goes on where an object is deleted. *)

Shard(s, new) == [on |-> "sh", k |-> s, ver |-> sh[s].ver, new |-> [new EXCEPT !.ver = sh[s].ver + 1]]
Pointer(k, new) == [on |-> "ptr", k |-> k, ver |-> ptr[k].ver, new |-> [new EXCEPT !.ver = ptr[k].ver + 1]]
Registry(seen, new) == [on |-> "reg", ver |-> seen.ver, new |-> [new EXCEPT !.ver = seen.ver + 1]]
Record(x, old, new) == [on |-> "rec", k |-> x, ver |-> old, new |-> new]

Matches(w) == CASE w.on = "sh" -> sh[w.k].ver = w.ver
                [] w.on = "ptr" -> ptr[w.k].ver = w.ver
                [] w.on = "reg" -> reg.ver = w.ver
                [] w.on = "rec" -> rec[w.k] = w.ver

Put(w) == /\ sh' = IF w.on = "sh" THEN [sh EXCEPT ![w.k] = w.new] ELSE sh
          /\ ptr' = IF w.on = "ptr" THEN [ptr EXCEPT ![w.k] = w.new] ELSE ptr
          /\ reg' = IF w.on = "reg" THEN w.new ELSE reg
          /\ rec' = IF w.on = "rec" THEN [rec EXCEPT ![w.k] = w.new] ELSE rec

Objects == <<reg, sh, ptr, rec>>
End(p) == IF p \in Helpers THEN "idle" ELSE "end"

Arrive(p, place, my) ==
    LET at(where, known) == pc' = [pc EXCEPT ![p] = where] /\ loc' = [loc EXCEPT ![p] = known]
        tell(answer) == said' = [said EXCEPT ![p] = answer]
        again == place = "again"
        settle(yes) == [Nobody EXCEPT !.tx = p, !.yes = yes, !.tag = IF yes THEN "committed" ELSE "aborted"]
    IN
    CASE again /\ my.round < Rounds -> at("start", [Nobody EXCEPT !.s = my.s, !.round = my.round + 1]) /\ UNCHANGED said
      [] again /\ my.round = Rounds -> at("end", Nobody) /\ tell("no")
      [] place = "closed" /\ my.s = 1 -> at("close", [my EXCEPT !.s = 2, !.w = None]) /\ UNCHANGED said
      [] place = "closed" /\ my.s = 2 -> at(IF my.fine THEN "drop" ELSE "not all", [my EXCEPT !.s = 1, !.w = None])
                                         /\ UNCHANGED said
      [] place = "done" -> at("end", Nobody) /\ tell("yes")
      [] place = "no" -> at("end", Nobody) /\ tell("no")
      [] place = "won" -> at("settle", settle(TRUE)) /\ tell("yes")
      [] place = "lost" -> at("lost", settle(FALSE)) /\ tell("no")
      [] place \in {"end", "idle"} -> at(place, Nobody) /\ UNCHANGED said
      [] OTHER -> at(place, my) /\ UNCHANGED said

Send(p, w, ok, changed, ask) ==
    \/ /\ IF Matches(w) THEN Put(w) /\ Arrive(p, ok, loc[p]) ELSE UNCHANGED Objects /\ Arrive(p, changed, loc[p])
       /\ UNCHANGED <<flight, doubts>>
    \/ /\ doubts > 0
       /\ doubts' = doubts - 1
       /\ flight' = flight \cup {w}
       /\ Arrive(p, ask, loc[p])
       /\ UNCHANGED Objects

Land == \E w \in flight :
    /\ flight' = flight \ {w}
    /\ IF Matches(w) THEN Put(w) ELSE UNCHANGED Objects
    /\ UNCHANGED <<doubts, pc, loc, said>>

Drop == \E w \in flight : flight' = flight \ {w} /\ UNCHANGED <<reg, sh, ptr, rec, doubts, pc, loc, said>>

With(p, place, known) == Arrive(p, place, known) /\ UNCHANGED <<reg, sh, ptr, rec, flight, doubts>>
Only(p, place) == With(p, place, loc[p])

(* An answer in doubt: what is there decides. Ours: fine. The tag we need: it is sent again, in the same step, for *)
(* were it refused, we would look again. Anything else: it can never land.                                         *)
Ask(p, w, ours, ok, changed, ask) ==
    IF ours THEN Only(p, ok)
    ELSE IF Matches(w) THEN Send(p, w, ok, ask, ask)
    ELSE Only(p, changed)

-----------------------------------------------------------------------------
(* Opening a shard: read the registry, read the shard. `fields` is the entry that is to be set. *)

Open(p, fields, mark, missing, taken, ready) ==
    LET my == loc[p]
        cur == sh[my.s]
        opened == [cur EXCEPT !.parent = my.epoch, !.closed = FALSE, !.entry = fields, !.recent = @ \cup mark]
        closed == cur.closed /\ cur.parent = my.epoch
    IN
    \/ /\ pc[p] = "open"
       /\ IF reg.epoch = 0 THEN Only(p, missing) ELSE With(p, "shard", [my EXCEPT !.epoch = reg.epoch])
    \/ /\ pc[p] = "shard"
       /\ IF cur.parent > my.epoch THEN Only(p, "open")
          ELSE IF closed /\ Mistake # "same epoch" THEN Only(p, "reopen")
          ELSE IF cur.entry.tx # None THEN FALSE    \* it waits for a helper, or is one
          ELSE IF cur.entry.now # None THEN Only(p, IF mark # {} /\ mark \subseteq cur.recent THEN "done" ELSE taken)
          ELSE With(p, ready, [my EXCEPT !.w = Shard(my.s, opened)])
    \/ /\ pc[p] = "reopen"   \* a deleter did not come to its end: a new epoch makes void what it did
       /\ IF reg.epoch = my.epoch
          THEN With(p, "reopening", [my EXCEPT !.w =
                  Registry(reg, [reg EXCEPT !.counter = @ + 1, !.epoch = reg.counter + 1])])
          ELSE Only(p, "open")
    \/ /\ pc[p] = "reopening"
       /\ Send(p, my.w, "open", "open", "open")

(* A create: the pointer, then the shard. *)
Create(p) ==
    LET my == loc[p] IN
    \/ /\ pc[p] = "start"
       /\ \E s \in {1, 2} : (my.round = 0 \/ s = my.s) /\ With(p, "open", [my EXCEPT !.s = s])
    \/ Open(p, Naming(p), {p}, "no", "no", "claim")
    \/ /\ pc[p] = "claim"
       /\ With(p, "claiming", [my EXCEPT !.v = Pointer(p, [ptr[p] EXCEPT !.here = TRUE, !.name = my.s])])
    \/ /\ pc[p] = "claiming"
       /\ Send(p, my.v, "set", "claim", "claim")
    \/ /\ pc[p] = "set"
       /\ Send(p, my.w, "done", "again", "ask set")
    \/ /\ pc[p] = "ask set"
       /\ Ask(p, my.w, p \in sh[my.s].recent, "done", "again", "ask set")

-----------------------------------------------------------------------------
(* The namespace: every shard is closed while it is empty, then the entry goes. *)

Delete(p) ==
    LET my == loc[p]
        cur == sh[my.s]
        gone == Registry(my.reg, [my.reg EXCEPT !.epoch = 0, !.recent = @ \cup {p}])
    IN
    \/ /\ pc[p] = "start"
       /\ IF reg.epoch = 0 THEN Only(p, "no")
          ELSE With(p, "look", [my EXCEPT !.reg = reg, !.epoch = reg.epoch, !.s = 1])
    \/ /\ pc[p] = "look"
       /\ cur.entry.tx = None
       /\ IF cur.entry.now # None THEN Only(p, "no")
          ELSE IF my.s = 1 THEN With(p, "look", [my EXCEPT !.s = 2])
          ELSE With(p, IF Mistake = "unclosed" THEN "drop" ELSE "close", [my EXCEPT !.s = 1])
    \/ /\ pc[p] = "close"
       /\ IF cur.entry # Free \/ cur.parent > my.epoch THEN With(p, "closed", [my EXCEPT !.fine = FALSE])
          ELSE IF cur.closed /\ cur.parent = my.epoch THEN Only(p, "closed")
          ELSE With(p, "closing", [my EXCEPT !.w = Shard(my.s, [cur EXCEPT !.parent = my.epoch, !.closed = TRUE])])
    \/ /\ pc[p] = "closing"
       /\ Send(p, my.w, "closed", "close", "close")
    \/ /\ pc[p] = "not all" /\ Only(p, "again")
    \/ /\ pc[p] = "drop"
       /\ Send(p, gone, "done", "again", "ask drop")
    \/ /\ pc[p] = "ask drop"
       /\ Ask(p, gone, p \in reg.recent, "done", "again", "ask drop")

Make(p) ==
    LET my == loc[p] IN
    \/ /\ pc[p] = "start"
       /\ reg.epoch = 0    \* before that it has nothing to do
       /\ With(p, "make", [my EXCEPT !.w =
             Registry(reg, [reg EXCEPT !.counter = @ + 1, !.epoch = reg.counter + 1, !.recent = @ \cup {p}])])
    \/ /\ pc[p] = "make"
       /\ Send(p, my.w, "done", "again", "ask make")
    \/ /\ pc[p] = "ask make"
       /\ Ask(p, my.w, p \in reg.recent, "done", "again", "ask make")

-----------------------------------------------------------------------------
(* Changes of several records; Commits.tla has more of them. Participants: the pointer, then the shards. *)

AtPointer == 3  \* beside the numbers of shards
Parts(x) == IF x \in Renamers THEN <<AtPointer, 0, 2>> ELSE <<AtPointer, 2>>

Settle(p) ==
    LET my == loc[p]
        x == my.tx
        k == Table(x)
        part == IF my.met # None THEN my.met ELSE Parts(x)[my.at]
        onward == IF my.met # None THEN With(p, End(p), my)
                  ELSE IF my.at = Len(Parts(x)) THEN With(p, "remove", [my EXCEPT !.w = None])
                  ELSE With(p, "settle", [my EXCEPT !.at = @ + 1, !.w = None])
        name == IF my.yes THEN ptr[k].next ELSE ptr[k].name
        entry == IF my.yes THEN sh[part].entry.next ELSE sh[part].entry.now
        mark == IF my.yes THEN {x} ELSE {}
    IN
    \/ /\ pc[p] = "settle"
       /\ IF part = AtPointer
          THEN IF ptr[k].tx # x THEN onward
               ELSE With(p, "settling", [my EXCEPT !.w = Pointer(k, [ptr[k] EXCEPT !.name = name, !.tx = None,
                        !.next = None, !.here = name # None, !.recent = @ \cup mark])])
          ELSE IF sh[part].entry.tx # x THEN onward
               ELSE With(p, "settling", [my EXCEPT !.w = Shard(part, [sh[part] EXCEPT
                        !.entry = Naming(entry), !.recent = @ \cup mark])])
    \/ /\ pc[p] = "settling"
       /\ Send(p, my.w, "settle", "settle", "settle")
    \/ /\ pc[p] = "remove"
       /\ Send(p, Record(x, my.tag, None), End(p), End(p), "remove")

Help(p) ==
    \/ /\ pc[p] = "idle"
       /\ \/ \E k \in Tables : ptr[k].tx # None /\ With(p, "record", [Nobody EXCEPT !.tx = ptr[k].tx, !.met = AtPointer])
          \/ \E s \in Shards : sh[s].entry.tx # None
                               /\ With(p, "record", [Nobody EXCEPT !.tx = sh[s].entry.tx, !.met = s])
          \/ \E x \in Txs : rec[x] # None /\ With(p, "record", [Nobody EXCEPT !.tx = x])
    \/ /\ pc[p] = "record"
       /\ LET found == rec[loc[p].tx] IN
            IF found = None THEN Only(p, IF loc[p].met # None THEN "settle" ELSE "idle")
            ELSE IF found = "pending" THEN Only(p, "abort")
            ELSE With(p, "settle", [loc[p] EXCEPT !.yes = found = "committed", !.tag = found, !.met = None])
    \/ /\ pc[p] = "abort"
       /\ Send(p, Record(loc[p].tx, "pending", "aborted"), "record", "record", "record")
    \/ Settle(p)

Transact(p) ==
    LET my == loc[p]
        k == Table(p)
        \* A rename marks the shards, then the pointer; a birth the other way round.
        marked == IF p \in Renamers THEN "point" ELSE "commit"
        pointed == IF p \in Renamers THEN "commit" ELSE "target"
        commit == Record(p, "pending", "committed")
    IN
    \/ /\ pc[p] = "start"
       /\ ptr[k].tx = None
       /\ With(p, "add", [my EXCEPT !.v = Pointer(k, [ptr[k] EXCEPT !.here = TRUE, !.tx = p, !.next = 2])])
    \/ /\ pc[p] = "add"
       /\ rec' = [rec EXCEPT ![p] = "pending"]
       /\ Arrive(p, IF p \in Renamers THEN "source" ELSE "point", my)
       /\ UNCHANGED <<reg, sh, ptr, flight, doubts>>
    \/ /\ pc[p] = "source"
       /\ IF sh[0].entry = Naming("t")
          THEN With(p, "mark source", [my EXCEPT !.w = Shard(0, [sh[0] EXCEPT !.entry = [Naming("t") EXCEPT !.tx = p]])])
          ELSE Only(p, "undo")
    \/ /\ pc[p] = "mark source"
       /\ Send(p, my.w, "target", "undo", "ask source")
    \/ /\ pc[p] = "ask source"
       /\ Ask(p, my.w, sh[0] = my.w.new, "target", "undo", "ask source")
    \/ /\ pc[p] = "target" /\ With(p, "open", [my EXCEPT !.s = 2, !.w = None])
    \/ Open(p, [Free EXCEPT !.next = k, !.tx = p], {}, "undo", "undo", "mark")
    \/ /\ pc[p] = "mark"
       /\ Send(p, my.w, marked, "undo", "ask mark")
    \/ /\ pc[p] = "ask mark"
       /\ Ask(p, my.w, sh[2] = my.w.new, marked, "undo", "ask mark")
    \/ /\ pc[p] = "point"
       /\ Send(p, my.v, pointed, "undo", "ask point")
    \/ /\ pc[p] = "ask point"
       /\ Ask(p, my.v, ptr[k] = my.v.new, pointed, "undo", "ask point")
    \/ /\ pc[p] = "commit"
       /\ Send(p, commit, "won", "was it", "ask commit")
    \/ /\ pc[p] = "ask commit"
       /\ Ask(p, commit, rec[p] = "committed", "won", "was it", "ask commit")
    \/ /\ pc[p] = "was it"
       /\ Only(p, IF rec[p] = "committed" \/ p \in ptr[k].recent THEN "won" ELSE "lost")
    \/ /\ pc[p] = "undo"
       /\ Send(p, Record(p, "pending", "aborted"), "lost", "lost", "undo")
    \/ /\ pc[p] = "lost"
       /\ Only(p, IF rec[p] \in {None, "aborted"} THEN "settle" ELSE "end")
    \/ Settle(p)

-----------------------------------------------------------------------------
(* fsck deletes pointers that nothing names: what a create left that died. *)

Named(k, entry) == entry.now = k \/ (entry.next = k /\ Mistake # "now only")

Fsck(p) ==
    LET my == loc[p] IN
    \/ /\ pc[p] = "start"
       /\ \E k \in Tables \ {"t"} :
            ptr[k].here /\ ptr[k].tx = None
            /\ With(p, "entry", [my EXCEPT !.v = Pointer(k, [ptr[k] EXCEPT !.here = FALSE, !.name = None]), !.s = ptr[k].name])
    \/ /\ pc[p] = "entry"
       /\ LET cur == sh[my.s] IN
            IF Named(my.v.k, cur.entry) THEN Only(p, "end")
            ELSE With(p, IF Mistake = "untouched" THEN "delete" ELSE "touch", [my EXCEPT !.w = Shard(my.s, cur)])
    \/ /\ pc[p] = "touch"
       /\ Send(p, my.w, "delete", "end", "end")
    \/ /\ pc[p] = "delete"
       /\ Send(p, my.v, "end", "end", "end")

-----------------------------------------------------------------------------
Done ==
    /\ \A k \in Tables : ptr[k].tx = None
    /\ \A s \in Shards : sh[s].entry.tx = None
    /\ \A x \in Txs : rec[x] = None
    /\ \A p \in Creators \cup Txs \cup Deleters : pc[p] = "end"
    /\ \A p \in Makers : pc[p] \in {"start", "end"}

Next ==
    \/ Done /\ UNCHANGED vars
    \/ \E p \in Creators : Create(p)
    \/ \E p \in Txs : Transact(p)
    \/ \E p \in Deleters : Delete(p)
    \/ \E p \in Makers : Make(p)
    \/ \E p \in Helpers : Help(p)
    \/ \E p \in Fscks : Fsck(p)
    \/ Land
    \/ Drop

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
NoOrphan ==       \* no table in a namespace that is deleted
    reg.epoch = 0 => \A s \in {1, 2}, k \in Tables : ~Visible(k, s)

Acknowledged ==   \* what was made is there, under one name
    /\ \A p \in Creators \cup Bearers : said[p] = "yes" => \E s \in {1, 2} : Visible(p, s)
    /\ \A p \in Renamers : said[p] = "yes" => Visible("t", 2)

Refused ==        \* and what was refused is not
    /\ \A p \in Creators \cup Bearers : said[p] = "no" => \A s \in {1, 2} : ~Visible(p, s)
    /\ \A p \in Renamers : said[p] = "no" => Visible("t", 0)

OneName ==        \* a rename is seen whole
    Visible("t", 0) # Visible("t", 2)

Kept ==           \* a name does not stop standing for what it stands for; nothing is dropped here
    [][\A k \in Tables \ {"t"}, s \in {1, 2} : Visible(k, s) => Visible(k, s)']_vars
=============================================================================

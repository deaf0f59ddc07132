FIRST_ADDR={{name}}-0.{{name}}
LOCAL_ADDR=$(hostname -i | cut -d ' ' -f 1)
IS_FIRST=$([ "$JOB_COMPLETION_INDEX" = 0 ] && echo 1 || echo 0)
# Failures that an earlier container of this Job with this index has counted. A new Job has all restarts.
FAILURES=$OUT/failures-{{name}}-$JOB-$JOB_COMPLETION_INDEX
RUNNING=$OUT/running-{{name}}-$JOB-$JOB_COMPLETION_INDEX
{{attempts}}
